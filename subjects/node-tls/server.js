/*
 * The TLS server of the post (studies/README.md): it accepts connections, reads their data, and
 * prints the memory of V8 and of the process once per second. It runs on every node since 0.12: no
 * syntax beyond ES5.
 *
 *   openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost -keyout key.pem -out cert.pem
 *   node --expose-gc server.js key=key.pem cert=cert.pem port=1234 figures=1235
 *
 *   curl http://127.0.0.1:1235/           its metrics as JSON
 *   curl http://127.0.0.1:1235/collect    after a forced collection, with those before; like SIGUSR2
 *
 * With session=KIB, each connection has as much of V8's heap as a session of a real service. With
 * leak=1, the sessions of closed connections are leaked. With collect=1, every value is measured
 * after a forced collection.
 */
'use strict';

var fs = require('fs');
var http = require('http');
var tls = require('tls');
var v8 = {};
try { v8 = require('v8'); } catch (error) { /* node 0.12 has no such module */ }

/* Time before and after a collection in which nothing else is done, in ms, so that both states can
 * be sampled from outside. */
var STILL = 500;
/* Size of an object of a session, in bytes: five words, and its slot in a list with room to grow. */
var OBJECT = 50;

var settings = {
    key: 'key.pem', cert: 'cert.pem',
    bind: '127.0.0.1',    /* the address that it listens on */
    port: 1234,
    figures: 0,    /* the port of the metrics; 0 is none */
    max: 20000,    /* maximum number of connections */
    session: 0,    /* KiB of V8's heap for each connection */
    leak: 0,       /* whether the sessions of closed connections are kept */
    collect: 0     /* whether all values are measured after a forced collection */
};
var forgotten = [];

function fail(sentence) {
    console.error('server: ' + sentence);
    process.exit(2);
}

process.argv.slice(2).forEach(function (word) {
    var at = word.indexOf('='), name = word.slice(0, at), value = word.slice(at + 1);
    if (at < 0 || !settings.hasOwnProperty(name)) {
        fail(word + ' is not understood: write NAME=VALUE; there are ' + Object.keys(settings).join(', '));
    }
    if (typeof settings[name] === 'number') {
        if (!/^\d{1,9}$/.test(value)) { fail(word + ' is not a number: write such as ' + name + '=1000'); }
        value = Number(value);
    }
    settings[name] = value;
});
if (settings.collect && !global.gc) {
    fail('collect=1 needs a collection on request: start it as node --expose-gc server.js');
}

function read(name) {
    try {
        return fs.readFileSync(settings[name]);
    } catch (error) {
        return fail(settings[name] + ' cannot be read (' + error.code + '): name another with ' + name + '=');
    }
}

function listen(server, port, host, done) {
    server.on('error', function (error) {
        fail(error.code === 'EADDRINUSE' ?
            'port ' + port + ' is in use: end what listens there, or choose another' :
            'port ' + port + ' cannot be listened on: ' + error.message);
    });
    server.listen(port, host, 4096, done);
}

function mebibytes(bytes) { return (bytes / 1024 / 1024).toFixed(2) + 'MB'; }

/* Returns a line in the format of the post. */
function line(memory) {
    return 'heapTotal ' + mebibytes(memory.heapTotal) + ' heapUsed ' + mebibytes(memory.heapUsed) +
        ' rss ' + mebibytes(memory.rss);
}

/* Returns a session of the configured size: small objects in a list, like parsed requests and
 * caches. */
function session() {
    var list = [], count = settings.session * 1024 / OBJECT;
    for (var i = 0; i < count; i += 1) { list.push({ at: i, of: list }); }
    return list;
}

var server = tls.createServer({ key: read('key'), cert: read('cert') }, function (socket) {
    var own = session();
    socket.on('data', function () {});
    socket.on('error', function (error) { console.error('tls client: ' + error.message); });
    socket.on('timeout', function () { socket.destroy(); });
    socket.on('close', function () {
        if (settings.leak) { forgotten.push(own); }
        own = null;
    });
});
server.maxConnections = settings.max;
/* The name of the event until node 6, and since then. */
['clientError', 'tlsClientError'].forEach(function (name) {
    server.on(name, function (error, socket) {
        console.error('tls client: ' + error.message);
        socket.destroy();
    });
});

function figures(done) {
    server.getConnections(function (error, connections) {
        if (error) { return done({ error: error.message }); }
        if (settings.collect) { global.gc(); }
        var memory = process.memoryUsage();
        done(withSpaces({
            connections: connections,
            inner_memory_bytes: memory.heapUsed, /* the key that lowtide reads */
            heap_total_bytes: memory.heapTotal,
            heap_used_bytes: memory.heapUsed,
            rss_bytes: memory.rss,
            external_bytes: memory.external      /* node 7 and later */
        }));
    });
}

/* Adds the memory that V8 uses in each space of its heap, if V8 reports it (node 6 and later):
 * code, old objects, large objects. */
function withSpaces(found) {
    if (!v8.getHeapSpaceStatistics) { return found; }
    v8.getHeapSpaceStatistics().forEach(function (space) {
        found['heap_' + space.space_name + '_bytes'] = space.space_used_size;
    });
    return found;
}

/* Collects garbage, and passes on the metrics before and after. */
function collect(done) {
    var before = process.memoryUsage();
    console.log('collecting: ' + line(before));
    setTimeout(function () {
        global.gc();
        setTimeout(function () {
            var after = process.memoryUsage();
            console.log('collected: ' + line(after));
            done({ before: before, after: after });
        }, STILL);
    }, STILL);
}

function answer(response, status, object) {
    response.writeHead(status, { 'Content-Type': 'application/json', 'Connection': 'close' });
    response.end(JSON.stringify(object) + '\n');
}

function tell(request, response) {
    function ok(object) { answer(response, 200, object); }
    if (request.url === '/') { return figures(ok); }
    if (request.url !== '/collect') { return answer(response, 404, { error: 'there are / and /collect' }); }
    if (global.gc) { return collect(ok); }
    answer(response, 409, { error: 'start it as node --expose-gc server.js' });
}

process.on('SIGUSR2', function () {
    if (global.gc) { return collect(function () {}); }
    console.error('server: no collection on request: start it as node --expose-gc server.js');
});

listen(server, settings.port, settings.bind, function () {
    console.log('tls server listening on port(' + settings.port + '), node ' + process.version);
});
if (settings.figures) { listen(http.createServer(tell), settings.figures, '127.0.0.1'); }

setInterval(function () {
    server.getConnections(function (error, connections) {
        console.log('server: tls connections(' + (error ? error.message : connections) + ')');
        console.log('Process: ' + line(process.memoryUsage()));
    });
}, 1000);
