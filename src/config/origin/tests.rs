//! What names and addresses of the web promise.

use super::*;

#[test]
fn hosts_are_names_without_a_port() {
    for (text, read) in [
        ("app.example.com", "app.example.com"),
        ("App.Example.COM", "app.example.com"),
        ("localhost", "localhost"),
        ("192.0.2.7", "192.0.2.7"),
        ("::1", "[::1]"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("my_service", "my_service"),
    ] {
        assert_eq!(host(text).as_deref(), Ok(read), "{text}");
    }
    for text in [
        "",
        "*",
        "*.example.com",
        "example.com:80",
        "https://example.com",
        "example.com/",
        "a..b",
        "a.",
        ".a",
        "bücher.example",
        "a b",
        "u@a.com",
        "0x7f.1",
        "127.1",
        "2130706433",
        "-a.com",
        "a-.com",
        "a;b",
        "a,b",
    ] {
        assert!(host(text).is_err(), "{text}");
    }
}

#[test]
fn origins_are_written_as_browsers_write_them() {
    for text in [
        "https://app.example.com",
        "http://localhost:5173",
        "https://app.example.com:8443",
        "http://[::1]:3000",
        "http://192.0.2.7",
        "capacitor://localhost",
        "chrome-extension://abcdefghijklmnop",
    ] {
        assert_eq!(origin(text).as_deref(), Ok(text));
    }
    for text in [
        "",
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/",
        "https://app.example.com/path",
        "https://App.example.com",
        "HTTPS://app.example.com",
        "https://app.example.com:443",
        "http://app.example.com:80",
        "https://*.example.com",
        "https://u@app.example.com",
        "https://app.example.com?x",
        "https://app.example.com#x",
        "https://",
        "file://",
        "file://x",
        "https://a,b",
        "https://a;b",
        "https://a b",
        "https://bücher.example",
        "https://a:99999",
        "https://a:",
        "https://a:08",
        "capacitor://",
        "Capacitor://localhost",
        "https://a.example https://b.example",
    ] {
        assert!(origin(text).is_err(), "{text}");
    }
    assert!(web_origin("capacitor://localhost").is_err());
}

#[test]
fn the_key_travels_over_https_or_stays_on_this_machine() {
    for text in [
        "https://gateway.example.com",
        "https://gateway.example.com/prefix",
        "https://gateway.example.com:8443",
        "http://localhost:9000",
        "http://127.0.0.1:9000",
        "http://[::1]:9000",
    ] {
        assert!(base_url(text).is_ok(), "{text}");
    }
    for (text, why) in [
        ("http://gateway.example.com", "https"),
        ("http://10.0.0.1", "https"),
        ("http://localhost.example.com", "https"),
        ("http://x.localhost", "https"),
        ("http://localhost.", "https"),
        ("ftp://gateway.example.com", "address"),
        ("gateway.example.com", "address"),
        ("", "address"),
        ("https://user:hunter2@gateway.example.com", "user"),
        ("https://user@gateway.example.com", "user"),
        ("https://gateway.example.com/?a=1", "query"),
        ("https://gateway.example.com/?", "query"),
        ("https://gateway.example.com/#a", "query"),
        ("https://gate\tway.example.com", "address"),
        ("https://gateway.example.com\\@evil", "address"),
        (" https://gateway.example.com", "address"),
    ] {
        let fault = base_url(text).expect_err(text);
        assert!(fault.contains(why) && !fault.contains("hunter2"), "{text}: {fault}");
    }
}

#[test]
fn further_endpoints_are_exact_paths_that_are_not_known() {
    for text in ["/api/v1/search", "/api/v1/images/edit", "/api/v1/video/list"] {
        assert!(endpoint(text).is_ok(), "{text}");
    }
    for text in [
        "",
        "/api/v1/",
        "/api/v1/chat",
        "/api/v1/video",
        "/api/v1/video/status",
        "/api/api-keys",
        "/api/v1/../api-keys",
        "/api/v1/./chat",
        "/api/v1//chat",
        "/api/v1/search/",
        "/api/v1/a?b",
        "/api/v1/a#b",
        "/api/v1/%2e%2e",
        "/api/v1/*",
        "/API/v1/search",
        "https://x/api/v1/search",
        "/api/v1/a b",
    ] {
        assert!(endpoint(text).is_err(), "{text}");
    }
    assert!(method("DELETE").is_err() && method("get").is_err() && method("GET").is_ok());
}
