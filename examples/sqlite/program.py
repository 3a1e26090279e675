"""Python on a database in an image: program.py EXTENSION IMAGE

The sqlite3 module must be built with extensions, as Debian's is.
"""

import sqlite3
import sys

extension, image = sys.argv[1:]

# The extension stays loaded for the whole process.
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(extension)


def explained(error: sqlite3.Error) -> str:
    (text,) = loader.execute("select syncline_last_error()").fetchone()
    return f"{error}: {text}"


try:
    db = sqlite3.connect(f"file:app.db?vfs=syncline&image={image}&create=64MiB", uri=True)
except sqlite3.Error as error:
    sys.exit(explained(error))
with db:
    db.execute("create table if not exists visit(at text, who text)")
    db.execute("insert into visit values(datetime(), 'Python')")
print(db.execute("select count(*) || ' visits' from visit").fetchone()[0])
db.close()
