// Fails if a port is in use: node port.js PORT
require("net").createServer().on("error", function () { process.exit(1); })
    .listen(process.argv[2], function () { process.exit(0); });
