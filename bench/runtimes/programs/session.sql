-- One session: an aggregate of 2.5 million rows, and 3,000 temporary tables.
select count(*) from (select g % 700000 as k, string_agg(md5(g::text), ',') as v from generate_series(1, 2500000) g group by 1) t;
do $$
declare i int;
begin
  for i in 1..3000 loop
    execute format('create temp table t%s (a int, b text)', i);
    execute format('insert into t%s select 1, 2', i);
  end loop;
end $$;
select pg_sleep(40);
