"""The statements by which the store is read: what changed, and which resources it has."""

ALL_CHANGES = """
SELECT feed.seq, (SELECT id FROM documents WHERE doc = feed.doc)
FROM (SELECT seq, doc FROM feeds WHERE site = ? AND seq > ? ORDER BY seq LIMIT ?) AS feed ORDER BY feed.seq
"""
CHANGES_OF_SITE = """
SELECT feed.seq, (SELECT id FROM documents WHERE doc = feed.doc)
FROM (SELECT seq, doc FROM feeds WHERE site = (SELECT site FROM sites WHERE name = ?) AND seq > ?
      UNION ALL SELECT seq, doc FROM feeds WHERE site = ? AND seq > ? ORDER BY seq LIMIT ?) AS feed
ORDER BY feed.seq
"""
# Jumps in the index from one resource to the next: DISTINCT would read every document.
RESOURCES = """
WITH RECURSIVE list (resource) AS (
    SELECT min(resource) FROM documents WHERE resource > ?
    UNION ALL SELECT (SELECT min(resource) FROM documents WHERE resource > list.resource) FROM list
    WHERE list.resource IS NOT NULL)
SELECT resource FROM list WHERE resource IS NOT NULL LIMIT ?
"""

IS_BACK = "EXISTS (SELECT 1 FROM documents WHERE resource = dropped.resource)"
DROPPED = f"SELECT resource FROM dropped WHERE NOT {IS_BACK} ORDER BY resource LIMIT ?"  # noqa: S608 - our own  # nosec B608
SEARCH = RESOURCES.replace(" LIMIT", " AND (? = '' OR instr(lower(resource), ?)) LIMIT")
SEARCH_AT_SITE = """
SELECT resource FROM involved WHERE site = (SELECT site FROM sites WHERE name = ?) AND resource > ?
AND (? = '' OR instr(lower(resource), ?)) ORDER BY resource LIMIT ?
"""
IN_STATE = """
SELECT * FROM (
SELECT resource FROM documents WHERE state = {state} AND resource > ?1 AND (?2 = '' OR instr(lower(resource), ?2))
AND (?3 IS NULL OR EXISTS (SELECT 1 FROM involved WHERE site = (SELECT site FROM sites WHERE name = ?3)
                           AND resource = documents.resource))
ORDER BY resource LIMIT ?4)
"""
SHARES = "SELECT name, count(*) FROM involved JOIN sites USING (site) GROUP BY site"


def in_states(number: int) -> str:
    """One part per state, each of which reads the index in order: `state IN` would read all of them, and sort.

    They are one statement, which sees one moment. With one statement per state, a resource that changed from the second
    state to the first one in between was in neither result.
    """
    return " UNION ALL ".join(IN_STATE.format(state=f"?{5 + n}") for n in range(number))
