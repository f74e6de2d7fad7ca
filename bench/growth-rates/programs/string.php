<?php // One string that becomes longer.
$kept = ""; $begin = hrtime(true);
while (hrtime(true) - $begin < 300e9) {
  $kept .= str_repeat("x", 400 * 1024); usleep(100000);
  $pages = explode(" ", file_get_contents("/proc/self/statm"))[1];
  echo hrtime(true) / 1e9, " ", strlen($kept), " ", $pages * 4096, "\n";
}
