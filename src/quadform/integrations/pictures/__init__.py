"""Pictures of results: curves by matplotlib, grey images by Pillow."""

from quadform.integrations.pictures._pictures import save_curves as save_curves, save_grey as save_grey
