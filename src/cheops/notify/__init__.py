"""Telling people and programs what happens.

Documents of the store (follower.py) and what the engine decides (looks.py) become events of a journal. From
there whoever asks gets them (feed.py), and each target is told, in order (delivery.py): by web hook, command
or mail.
"""
