<?php
// Chunks that a few long-lived arrays keep.
ini_set('memory_limit', '1G');
$short = $kept = [];
for ($i = 0; $i < 800000; $i++) {
    $short[] = str_repeat('x', 100 + $i % 50);
    if ($i % 5000 == 0) $kept[] = str_repeat('y', 120);
}
unset($short);
gc_mem_caches();
echo "ready\n";
fgets(STDIN);
