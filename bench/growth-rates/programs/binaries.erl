%% Terms that are kept by a process.
-module(binaries). -export([main/1]).
main(_) -> loop([], 0, erlang:monotonic_time(second) + 300).
loop(Keep, N, End) ->
  case erlang:monotonic_time(second) < End of false -> ok; true ->
    More = [{I, integer_to_list(I), [I, I]} || I <- lists:seq(1, 3000)],
    {ok, S} = file:read_file("/proc/self/statm"), [_, R | _] = string:split(S, " ", all),
    io:format("~f ~b ~b~n", [os:perf_counter(nanosecond) / 1.0e9, erlang:memory(total), binary_to_integer(R) * 4096]),
    timer:sleep(100), loop([More | Keep], N, End) end.
