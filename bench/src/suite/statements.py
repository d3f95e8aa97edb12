# Twenty thousand queries of a row each, by itself: SQLite locks its file for each, and looks whether
# somebody changed it. Half of them of a tenth of the rows.
import sqlite3, sys

db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=16")
x, total = 12345, 0
for i in range(20000):
    x = (x * 1103515245 + 12345) % 2147483648
    row = 1 + x // 65536 % (62000 if i % 2 else 6200)
    total += len(db.execute("SELECT body FROM archive WHERE id = ?", (row,)).fetchone()[0])
print(total)
