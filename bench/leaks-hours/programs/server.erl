% A process per connection; an ETS table of sessions of 5 minutes with 2,000 bytes each.
-module(server). -export([main/1]).
main([Port, Truth]) -> ets:new(sessions, [named_table, public]),
 {ok, L} = gen_tcp:listen(list_to_integer(Port), [binary, {packet, http_bin}, {active, false}, {reuseaddr, true}]),
 spawn(fun() -> accept(L) end), {ok, F} = file:open(Truth, [append]), count(F).
accept(L) -> {ok, S} = gen_tcp:accept(L), P = spawn(fun() -> receive go -> serve(S, none) end end),
 gen_tcp:controlling_process(S, P), P ! go, accept(L).
serve(S, Path) -> case gen_tcp:recv(S, 0) of
  {ok, {http_request, _, {abs_path, New}, _}} -> serve(S, New);
  {ok, http_eoh} -> ets:insert(sessions, {Path, erlang:system_time(second), binary:copy(<<"x">>, 2000)}),
   gen_tcp:send(S, [<<"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n">>, binary:copy(<<"y">>, 4000)]), serve(S, none);
  {ok, _} -> serve(S, Path); _ -> gen_tcp:close(S) end.
count(F) -> timer:sleep(1000), Now = erlang:system_time(second),
 ets:select_delete(sessions, [{{'_', '$1', '_'}, [{'<', '$1', Now - 300}], [true]}]), N = ets:info(sessions, size),
 io:format(F, "~p ~p ~p ~p~n", [Now, N * 2000, N, erlang:memory(total)]), count(F).
