//! The web server of `make run`: one file with the standard library only, so that it builds in a second and
//! shows a container that contains only a program.
//!
//! It answers `/` with a page about its environment, `/healthz` with `ok`, and writes one line per request to
//! standard output. SIGTERM ends it at once. It must never need a file, a library or its own network.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A client that is silent for this long is disconnected.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request head that is read.
const LONGEST_HEAD: u64 = 16 * 1024;

fn main() -> io::Result<()> {
    termination::exit_on_sigterm();
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(80);
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("listening on port {port}");
    static VISITS: AtomicU64 = AtomicU64::new(0);
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            if let Err(error) = serve(&stream, &VISITS) {
                println!("connection lost: {error}");
            }
        })?;
    }
    Ok(())
}

/// Answers one request and closes the connection.
fn serve(stream: &TcpStream, visits: &AtomicU64) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let peer = stream.peer_addr()?;
    let mut head = BufReader::new(stream.take(LONGEST_HEAD)).lines();
    let Some(request) = head.next().transpose()? else { return Ok(()) };
    // The rest of the head is not used, but closing with unread data would reset the connection.
    while head.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (status, kind, body) = respond(&request, visits);
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or("-"), words.next().unwrap_or("-"));
    println!("{} {method} {path} {}", peer.ip(), &status[..3]);
    Ok(())
}

/// Status line, content type and body for a request line such as `GET / HTTP/1.1`.
fn respond(request: &str, visits: &AtomicU64) -> (&'static str, &'static str, String) {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    match (method, path) {
        ("GET", "/") => {
            let visit = visits.fetch_add(1, Ordering::Relaxed) + 1;
            let about: Vec<_> = std::env::vars().filter(|(name, _)| name.starts_with("WARREN_")).collect();
            ("200 OK", "text/html", page(&hostname(), &about, visit))
        }
        ("GET", "/healthz") => ("200 OK", "text/plain", "ok\n".to_owned()),
        ("GET", _) => ("404 Not Found", "text/plain", "There is / and /healthz.\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "Only GET is answered.\n".to_owned()),
    }
}

/// The page: the replica that answered, its environment, and the number of requests.
fn page(hostname: &str, about: &[(String, String)], visit: u64) -> String {
    let mut rows = format!("<tr><th>host name</th><td>{}</td></tr>\n", escape(hostname));
    for (name, value) in about {
        // Writing to a String cannot fail.
        let _ = writeln!(rows, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Warren</title><style>\n\
         body{{font:16px/1.6 system-ui,sans-serif;max-width:36rem;margin:12vh auto;padding:0 1rem;\
         color:#24292f;background:#fbfaf7}}\n\
         h1{{font-weight:600;letter-spacing:-.02em}}\n\
         table{{border-collapse:collapse;width:100%}}\n\
         th,td{{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #e3e0d8}}\n\
         th{{font-weight:500;color:#6b6558}}\n\
         </style></head><body>\n<h1>Hello from a warren.</h1>\n<table>\n{rows}</table>\n\
         <p>This replica answers its request {visit} since it started. Reload to meet the other ones.</p>\n\
         </body></html>\n"
    )
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or("unknown".to_owned(), |name| name.trim().to_owned())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The first process of a container is not ended by a signal without a handler, and the standard library
/// cannot set one: this is the one call to the C library that does.
mod termination {
    #![allow(unsafe_code)]

    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
        fn _exit(status: i32) -> !;
    }

    const SIGTERM: i32 = 15;

    extern "C" fn leave(_number: i32) {
        // SAFETY: `_exit` is async-signal-safe and does not return.
        unsafe { _exit(0) }
    }

    /// Ends the process with status 0 when SIGTERM arrives.
    pub fn exit_on_sigterm() {
        // SAFETY: the handler calls nothing but an async-signal-safe function.
        unsafe { signal(SIGTERM, leave) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_count_and_escapes_text() {
        let page = page("a<b", &[("WARREN_SLOT".to_owned(), "1".to_owned())], 3);
        assert!(page.contains("a&lt;b") && page.contains("WARREN_SLOT") && page.contains("request 3 "));
    }

    #[test]
    fn only_pages_count_as_visits() {
        let visits = AtomicU64::new(0);
        assert_eq!(respond("GET /healthz HTTP/1.1", &visits).0, "200 OK");
        assert_eq!(respond("GET /x HTTP/1.1", &visits).0, "404 Not Found");
        assert_eq!(respond("POST / HTTP/1.1", &visits).0, "405 Method Not Allowed");
        assert_eq!(respond("", &visits).0, "405 Method Not Allowed");
        assert!(respond("GET /?a=b HTTP/1.1", &visits).2.contains("request 1 "));
    }
}
