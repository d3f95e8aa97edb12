import sqlite3, sys

db = sqlite3.connect(sys.argv[1])
db.executescript("""
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;
CREATE TABLE rates(currency INTEGER PRIMARY KEY, rate INTEGER);
INSERT INTO rates VALUES (1, 100), (2, 117), (3, 85), (4, 131), (5, 92), (6, 108);
CREATE TABLE orders(id INTEGER PRIMARY KEY, currency INTEGER, amount INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)
INSERT INTO orders SELECT i, i % 6 + 1, (i * 7919) % 10007, hex(zeroblob(240)) FROM n;
CREATE TABLE archive(id INTEGER PRIMARY KEY, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 62000)
INSERT INTO archive SELECT i, hex(zeroblob(1000)) || i FROM n;
""")
db.close()
