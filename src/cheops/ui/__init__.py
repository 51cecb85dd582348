"""The web interface ("Chephren"), served by every agent at /ui.

- `server`  an ASGI layer in front of the API: the page, its scripts and styles, with strict security headers
- `web/`    the pages: plain ES modules and CSS, no build step, nothing from other hosts
    - `main.js`, `router.js`        the frame, and one view per URL
    - `api.js`, `events.js`         requests to the agent's API, and its stream of events
    - `dom.js`, `components.js`     DOM elements from data, and the components that views share
    - `views/`                      one module per page or tab
    - `lanes/`                      the operations of a resource, one lane per site
    - `actions/`                    the dialogs that change something, each with a dry run

To add a page: write `views/NAME.js` with a function `nameView(place, {parts, query, signal})`, add its route in
`main.js`, and its first path segment to `_VIEWS` in `server.py`, so that its scripts are preloaded.

Every text that comes from a site is a DOM text node, never HTML. The package may import Starlette and nothing else
of Cheops: all data comes to the page from the API.
"""
