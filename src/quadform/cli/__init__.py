"""The `quadform` command: one file per verb, each a function that `main` finds here."""

from quadform.cli._app import main as main
