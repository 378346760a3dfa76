//! The web server of `make run`: one file with the standard library only, so that it builds in a second and
//! shows a container that contains only a program.
//!
//! It answers `/` with a page about its environment, `/healthz` with `ok`, and a datagram with its host name. It writes
//! one line per request to standard output. At SIGTERM it answers what has arrived and ends. It must never need a file,
//! a library or its own network.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A client that is silent for this long is disconnected.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request head that is read.
const LONGEST_HEAD: u64 = 16 * 1024;
/// How long requests that have arrived may take after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> io::Result<()> {
    let sigterm = termination::block_sigterm();
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(80);
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("listening on port {port}");
    let datagrams = UdpSocket::bind(("0.0.0.0", port))?;
    std::thread::spawn(move || answer_datagrams(&datagrams));
    let waiting = listener.try_clone()?;
    std::thread::spawn(move || {
        sigterm.wait();
        // From now on `accept` takes what has arrived and then fails. The connection ends a wait in it.
        let stopped = waiting.set_nonblocking(true);
        let _ = stopped.and_then(|()| TcpStream::connect(("127.0.0.1", port)));
    });
    static VISITS: AtomicU64 = AtomicU64::new(0);
    let (serving, served) = mpsc::channel::<()>();
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => continue,
        };
        let serving = serving.clone();
        std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            let _serving = serving;
            if let Err(error) = serve(&stream, &VISITS) {
                println!("connection lost: {error}");
            }
        })?;
    }
    drop(serving);
    // Ends when every thread has dropped its end.
    let _ = served.recv_timeout(STOP_TIMEOUT);
    Ok(())
}

/// Answers each datagram with the host name.
fn answer_datagrams(socket: &UdpSocket) {
    loop {
        // A lost datagram is asked again by its sender.
        if let Ok((_, sender)) = socket.recv_from(&mut [0; 1]) {
            let _ = socket.send_to(format!("{}\n", hostname()).as_bytes(), sender);
        }
    }
}

/// Answers one request and closes the connection.
fn serve(stream: &TcpStream, visits: &AtomicU64) -> io::Result<()> {
    // A connection that was accepted at the end may have got the listener's mode.
    stream.set_nonblocking(false)?;
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
/// cannot wait for one: these are the calls to the C library that do.
mod termination {
    #![allow(unsafe_code)]

    /// `sigset_t` of Linux.
    #[repr(C)]
    pub struct SignalSet([u64; 16]);

    unsafe extern "C" {
        fn sigaddset(set: *mut SignalSet, number: i32) -> i32;
        fn sigwait(set: *const SignalSet, number: *mut i32) -> i32;
        fn pthread_sigmask(how: i32, set: *const SignalSet, before: *mut SignalSet) -> i32;
    }

    const SIG_BLOCK: i32 = 0;
    const SIGTERM: i32 = 15;

    /// Blocks SIGTERM in this thread and those that it starts, so that it can be waited for.
    pub fn block_sigterm() -> SignalSet {
        let mut set = SignalSet([0; 16]);
        // SAFETY: the set is of the size that the C library expects, and lives during the calls.
        unsafe {
            sigaddset(&mut set, SIGTERM);
            pthread_sigmask(SIG_BLOCK, &set, std::ptr::null_mut());
        }
        set
    }

    impl SignalSet {
        /// Waits for SIGTERM.
        pub fn wait(&self) {
            let mut number = 0;
            // SAFETY: both live during the call.
            while unsafe { sigwait(self, &mut number) } != 0 {}
        }
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
