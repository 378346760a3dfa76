//! The web server of `make run`: one file with the standard library only, so that it builds in a second and
//! shows a container that contains only a program.
//!
//! It answers `/` with a page about its environment, `/healthz` with `ok`, and a datagram with its host name. It writes
//! one line per request to standard output. A connection may have several requests. After SIGTERM it answers what has
//! arrived, closes each connection with the next answer, and ends. It must never need a file, a library or its own
//! network.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A client that is silent for this long is disconnected.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request head that is read.
const LONGEST_HEAD: u64 = 16 * 1024;
/// How long requests that have arrived, and the next ones of open connections, may take after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

/// Requests for the page so far.
static VISITS: AtomicU64 = AtomicU64::new(0);
/// SIGTERM was received.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

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
        IS_STOPPING.store(true, Ordering::SeqCst);
        // From now on `accept` takes what has arrived and then fails. The connection ends a wait in it.
        let stopped = waiting.set_nonblocking(true);
        let _ = stopped.and_then(|()| TcpStream::connect(("127.0.0.1", port)));
    });
    let (serving, served) = mpsc::channel::<()>();
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => continue,
        };
        let serving = serving.clone();
        std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            let _serving = serving;
            match serve(&stream) {
                // A silent client, between two requests too.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => println!("connection lost: {error}"),
                Ok(()) => {}
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

/// Answers the requests of a connection.
fn serve(stream: &TcpStream) -> io::Result<()> {
    // A connection that was accepted at the end may have got the listener's mode.
    stream.set_nonblocking(false)?;
    // An answer is one packet; nothing is gained by a wait for more.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let peer = stream.peer_addr()?;
    let mut requests = BufReader::new(stream);
    while let Some(request) = read_head(&mut requests)? {
        let (status, kind, body) = respond(&request.line, &VISITS);
        let is_last = request.is_last || IS_STOPPING.load(Ordering::SeqCst);
        let connection = if is_last { "close" } else { "keep-alive" };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nConnection: {connection}\r\n\r\n{body}",
            body.len()
        );
        (&mut &*stream).write_all(answer.as_bytes())?;
        let mut words = request.line.split(' ');
        let (method, path) = (words.next().unwrap_or("-"), words.next().unwrap_or("-"));
        println!("{} {method} {path} {}", peer.ip(), &status[..3]);
        if is_last {
            break;
        }
    }
    Ok(())
}

/// The head of a request.
#[derive(Debug, PartialEq)]
struct RequestHead {
    line: String,
    /// The connection ends with the answer.
    is_last: bool,
}

/// Reads a head to its end: closing a connection with unread data would reset it. `None` at the end of the connection.
fn read_head(connection: impl BufRead) -> io::Result<Option<RequestHead>> {
    let mut lines = connection.take(LONGEST_HEAD).lines();
    let Some(line) = lines.next().transpose()? else { return Ok(None) };
    let mut is_last = !line.ends_with("HTTP/1.1");
    loop {
        match lines.next().transpose()? {
            Some(field) if field.is_empty() => return Ok(Some(RequestHead { line, is_last })),
            Some(field) => match field.to_ascii_lowercase().split_once(':') {
                Some(("connection", value)) => is_last |= value.trim() == "close",
                // A body is not read, so what follows is not a request.
                Some(("content-length", length)) => is_last |= length.trim() != "0",
                Some(("transfer-encoding", _)) => is_last = true,
                _ => {}
            },
            // The head is too long or incomplete.
            None => return Ok(Some(RequestHead { line, is_last: true })),
        }
    }
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
    fn heads_are_read_one_by_one() {
        let head = |line: &str, is_last| Some(RequestHead { line: line.to_owned(), is_last });
        let mut two = &b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nConnection: Close\r\n\r\n"[..];
        assert_eq!(read_head(&mut two).unwrap(), head("GET / HTTP/1.1", false));
        assert_eq!(read_head(&mut two).unwrap(), head("GET /x HTTP/1.1", true));
        assert_eq!(read_head(&mut two).unwrap(), None);
        let is_last = |text: &str| read_head(text.as_bytes()).unwrap().unwrap().is_last;
        assert!(is_last("GET / HTTP/1.0\r\n\r\n"));
        assert!(is_last("GET / HTTP/1.1\r\nHost"));
        assert!(is_last("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"));
        assert!(is_last(&format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(20_000))));
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
