// A native addon of node that loses 700 bytes at each call.
#include <node_api.h>
#include <stdlib.h>
#include <string.h>

static napi_value lose(napi_env env, napi_callback_info info) {
    (void)info;
    char *volatile lost = malloc(700);
    memset(lost, 'n', 700);
    lost = NULL;
    napi_value nothing;
    napi_get_undefined(env, &nothing);
    return nothing;
}

NAPI_MODULE_INIT() {
    napi_value function;
    napi_create_function(env, "lose", NAPI_AUTO_LENGTH, lose, NULL, &function);
    napi_set_named_property(env, exports, "lose", function);
    return exports;
}
