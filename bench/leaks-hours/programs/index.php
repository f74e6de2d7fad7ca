<?php $rows = []; for ($i = 0; $i < mt_rand(2000, 12000); $i++) $rows[] = ['id' => $i, 'name' => "row $i"];
$body = substr(json_encode($rows), 0, 5000); $now = microtime(true); $truth = getenv('TRUTH');
if (!file_exists($truth) || time() > filemtime($truth)) { clearstatcache(); unset($rows);
  file_put_contents($truth, $now . ' ' . memory_get_usage() . ' 0 ' . memory_get_usage(true) . "\n", FILE_APPEND); }
echo $body;
