// Sessions of 5 minutes with 3,000 bytes each, and 100 KB of garbage per request.
package main
import ("fmt"; "net/http"; "os"; "runtime"; "sync"; "time")
type session struct { at time.Time; data []byte }
var lock sync.Mutex; var sessions = map[string]session{}
func main() { go count(); panic(http.ListenAndServe("127.0.0.1:" + os.Args[1], http.HandlerFunc(serve))) }
func serve(w http.ResponseWriter, r *http.Request) { body := make([]byte, 100000); lock.Lock()
 sessions[r.URL.Path] = session{time.Now(), make([]byte, 3000)}; lock.Unlock(); w.Write(body[:5000]) }
func count() { f, _ := os.Create(os.Args[2]); for range time.Tick(time.Second) { lock.Lock()
 for key, s := range sessions { if time.Since(s.at) > 5 * time.Minute { delete(sessions, key) } }
 n := len(sessions); lock.Unlock(); var m runtime.MemStats; runtime.ReadMemStats(&m)
 fmt.Fprintln(f, float64(time.Now().UnixMilli()) / 1000, n * 3000, n, m.HeapAlloc) } }
