-- A table of events that is emptied, and random reads of a table that is larger than the shared buffers.
\set a random(1, 500000)
\set r random(1, 3000)
select abalance from pgbench_accounts where aid = :a;
insert into events (aid, text) values (:a, repeat('e', 500));
select count(*), max(text) from (select text from events order by id desc limit 100) t;
\if :r = 1
truncate events;
\endif
