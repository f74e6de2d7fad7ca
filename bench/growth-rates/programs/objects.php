<?php // Arrays that are kept.
$keep = []; $n = 0; $end = time() + 300;
while (time() < $end) { for ($i = 0; $i < 2000; $i++) { $n++; $keep[] = ['n' => $n, 's' => "item $n", 'l' => [$n, $n + 1]]; }
  $rss = 4096 * (int) explode(' ', file_get_contents('/proc/self/statm'))[1];
  echo hrtime(true) / 1e9, ' ', memory_get_usage(), ' ', $rss, "\n"; usleep(100000); }
