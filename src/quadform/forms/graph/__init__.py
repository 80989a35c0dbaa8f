"""The graph form: message passing along a list of edges."""

from quadform.forms.graph._form import MessagePassing as MessagePassing
