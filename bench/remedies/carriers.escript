#!/usr/bin/env escript
%% Processes of which a few stay keep carriers that are mostly empty.
main(_) ->
    Self = self(),
    Start = fun(I) ->
        spawn(fun() -> L = lists:seq(1, 2000), Self ! {up, self()}, receive stop -> length(L) end end),
        receive {up, Pid} -> {I, Pid} end
    end,
    All = [Start(I) || I <- lists:seq(1, 6000)],
    [Pid ! stop || {I, Pid} <- All, I rem 60 =/= 0],
    timer:sleep(500),
    [erlang:garbage_collect(P) || P <- processes()],
    io:format("ready~n"),
    io:get_line("").
