"""Every parser of outside bytes, fed with what nobody should send. See targets.py for the table of them."""
