"""What can go wrong with documents and where they are kept."""

from cheops.errors import CheopsError, Fault


class StoreError(CheopsError):
    """The store cannot do what it was asked; nothing of it was done. The text says why, and what to do."""

    status = 503
    definite = False


class CodecError(CheopsError):
    """This is not a document, a message or an id as Cheops writes them, or it is beyond a limit."""

    fault = Fault.PEER
    status = 400
