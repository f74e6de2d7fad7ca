# Cycles that Perl does not free.
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep); $| = 1; my $n = 0; my $end = time + 300;
while (time < $end) { for (1..1000) { my $a = { n => $n++, s => "item $n" }; my $b = { a => $a }; $a->{b} = $b; }
  open my $f, '<', '/proc/self/statm'; my $rss = (split ' ', <$f>)[1] * 4096;
  print clock_gettime(CLOCK_MONOTONIC), " ", $n * 700, " $rss\n"; sleep 0.1; }
