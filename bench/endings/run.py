#!/usr/bin/env python3
"""From a signal, or the end of its terminal, to the end of each verb: run.py LOWTIDE HUP INT TERM close."""
import os, pty, subprocess, sys, tempfile, time, signal, fcntl, termios
LT = os.path.abspath(sys.argv.pop(1))
def subject():
    p=subprocess.Popen(['python3','-c','import time\nl=[bytes(1000) for _ in range(200000)]\ndel l[::2]\nprint("ready",flush=True)\nimport http.server\nhttp.server.HTTPServer(("127.0.0.1",0),http.server.BaseHTTPRequestHandler)\ntime.sleep(10000)'],stdout=subprocess.PIPE)
    p.stdout.readline(); return p
def run(args,how):
    master,slave=pty.openpty()
    def pre():
        os.setsid(); fcntl.ioctl(slave,termios.TIOCSCTTY,0)
        for s in (signal.SIGHUP,signal.SIGINT,signal.SIGTERM,signal.SIGQUIT): signal.signal(s,signal.SIG_DFL)
    p=subprocess.Popen([LT]+args,stdin=slave,stdout=slave,stderr=slave,preexec_fn=pre,close_fds=True)
    os.close(slave)
    t0=time.time()
    import threading
    stop=[False]
    def drain():
        import select
        while not stop[0]:
            r,_,_=select.select([master],[],[],0.05)
            if r:
                try:
                    if not os.read(master,65536): return
                except OSError: return
    th=threading.Thread(target=drain); th.start()
    time.sleep(float(os.environ.get('AFTER','2.5')))
    if p.poll() is not None: print(args,'ended before',p.returncode); stop[0]=True; th.join(); return
    t=time.time()
    if how=='close':
        stop[0]=True; th.join(); os.close(master)
    elif how=='stall+TERM':
        stop[0]=True; th.join(); time.sleep(1); t=time.time(); p.send_signal(signal.SIGTERM)
    else:
        p.send_signal(getattr(signal,'SIG'+how))
    try:
        rc=p.wait(20); print(f"{' '.join(args):60.60} {how:10} rc {rc} after {time.time()-t:.2f} s",flush=True)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(args):60.60} {how:10} STILL THERE",flush=True); p.kill(); p.wait()
    stop[0]=True; th.join()
s=subject(); pid=str(s.pid)
import http.server,threading
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.05); self.send_response(200); self.send_header('content-length','0'); self.end_headers()
    def log_message(self,*a): pass
srv=http.server.ThreadingHTTPServer(('127.0.0.1',0),H); threading.Thread(target=srv.serve_forever,daemon=True).start()
url=f'http://127.0.0.1:{srv.server_port}/'
home = tempfile.mkdtemp(); os.chdir(home)
import shutil
for how in sys.argv[1:]:
    for args in (['watch',pid],['watch','--json',pid],['inspect','--watch','60s',pid],['release','--watch','60s',pid],['load',url,'-z','60s'],['load','tcp:127.0.0.1:1','-c','4','--rate','1/s'],['load','http://10.255.255.1/','-n','4'],
        ['study','-a','glibc','-o','st','--settle','1s','--','sleep','30'],['demo','-o','demo']):
        for d in ('st','demo'): shutil.rmtree(d,ignore_errors=True)
        run(args,how)
s.kill()
os._exit(0)
