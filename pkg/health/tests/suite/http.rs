//! Possible server answers to a GET.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use warren_health::MAX_OUTPUT;

use super::fixture::{ProbeFixture, get, get_with};

#[tokio::test]
async fn http_status_decides_result() {
    let world = ProbeFixture::new();
    for (status, good) in [(200, true), (204, true), (301, true), (399, true), (400, false), (500, false)] {
        let port = world.serve_bytes(format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n"));
        let outcome = world.probe(get(port, "/live?x=1")).await;
        let expected = format!("HTTP {status} from :{port}/live?x=1");
        assert_eq!((outcome.succeeded, outcome.output()), (good, expected));
    }
    let port = world.serve_bytes("HTTP/1.0 200 OK\r\n\r\nold");
    assert!(world.probe(get(port, "/")).await.succeeded, "an old server");
}

#[tokio::test]
async fn the_beginning_of_a_bad_answer_is_kept() {
    let world = ProbeFixture::new();
    let body = format!("no database\n{}", "x".repeat(4000));
    let length = body.len();
    let port = world.serve_bytes(format!("HTTP/1.1 503 Sorry\r\nContent-Length: {length}\r\n\r\n{body}"));
    let outcome = world.probe(get(port, "/")).await;
    assert!(!outcome.succeeded);
    assert_eq!(outcome.summary, format!("HTTP 503 from :{port}/"));
    assert!(outcome.output().starts_with(&format!("HTTP 503 from :{port}/: no database\nxxx")));
    assert_eq!(outcome.output().len(), MAX_OUTPUT);
}

#[tokio::test]
async fn request_has_configured_headers() {
    let world = ProbeFixture::new();
    let port = world.serve(|head, mut stream| async move {
        let text = head.to_ascii_lowercase();
        let as_requested = text.starts_with("get /x?y http/1.1\r\n")
            && text.contains("\r\nhost: web.example\r\n")
            && text.contains("\r\nx-key: a b\r\n")
            && text.contains("\r\nconnection: close\r\n");
        let status = if as_requested { 200 } else { 500 };
        stream.write_all(format!("HTTP/1.1 {status} x\r\n\r\n{head}").as_bytes()).await.ok();
    });
    let check = get_with(port, "/x?y", &[("Host", "web.example"), ("X-Key", "a b")]);
    let outcome = world.probe(check).await;
    assert!(outcome.succeeded, "{}", outcome.output());
    let outcome = world.probe(get(port, "/")).await;
    let shown = outcome.output().to_ascii_lowercase();
    assert!(shown.contains(&format!("host: localhost:{port}")), "{shown}");
}

#[tokio::test]
async fn same_host_redirects_are_followed() {
    let world = ProbeFixture::new();
    let port = world.serve(|head, mut stream| async move {
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let answer = match path.as_str() {
            "/good" => "307 x\r\nLocation: fine",
            "/bad" => "302 x\r\nLocation: /broken",
            "/away" => "302 x\r\nLocation: http://example.com/broken",
            "/nowhere" => "302 x",
            "/loop" => "301 x\r\nLocation: /loop",
            "/fine" => "200 OK",
            _ => "500 x",
        };
        stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.ok();
    });
    for (path, good, expected) in [
        ("/good", true, "HTTP 200 from :{port}/fine"),
        ("/bad", false, "HTTP 500 from :{port}/broken"),
        ("/away", true, "HTTP 302 from :{port}/away"),
        ("/nowhere", true, "HTTP 302 from :{port}/nowhere"),
        ("/loop", false, "redirected more than 5 times, at last to :{port}/loop"),
    ] {
        let outcome = world.probe(get(port, path)).await;
        assert_eq!(
            (outcome.succeeded, outcome.summary),
            (good, expected.replace("{port}", &port.to_string()))
        );
    }
}

#[tokio::test]
async fn slow_and_endless_answers_take_no_more_than_they_may() {
    let world = ProbeFixture::new();
    let endless = |status: &'static str| {
        world.serve(move |_, mut stream| async move {
            let head = format!("HTTP/1.1 {status} x\r\nTransfer-Encoding: chunked\r\n\r\n");
            stream.write_all(head.as_bytes()).await.ok();
            let chunk = format!("2000\r\n{}\r\n", "x".repeat(0x2000));
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
        })
    };
    assert!(world.probe(get(endless("200"), "/")).await.succeeded, "the body is not waited for");
    let outcome = world.probe(get(endless("500"), "/")).await;
    assert!(!outcome.succeeded && outcome.output().len() == MAX_OUTPUT);

    let silent = world.serve(|_, stream| async move {
        let _held = stream;
        std::future::pending().await
    });
    let begun = Instant::now();
    let outcome = world.probe_with_timeout(get(silent, "/"), Duration::from_millis(300)).await;
    assert_eq!(outcome.output(), "no answer within 300ms");
    let drip = world.serve(|_, mut stream| async move {
        while stream.write_all(b"H").await.is_ok() {
            // Not a wait: the delay of the server.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let outcome = world.probe_with_timeout(get(drip, "/"), Duration::from_millis(300)).await;
    assert!(!outcome.succeeded, "{outcome:?}");
    let stuck = world.serve(|_, mut stream| async move {
        stream.write_all(b"HTTP/1.1 500 x\r\nContent-Length: 100\r\n\r\nhalf").await.ok();
        std::future::pending::<()>().await;
    });
    let outcome = world.probe(get(stuck, "/")).await;
    assert_eq!(outcome.output(), format!("HTTP 500 from :{stuck}/: half"));
    // Less than the 30 seconds of the last check: it does not wait that long for the rest of the body.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn non_http_answer_is_reported() {
    let world = ProbeFixture::new();
    for answer in ["", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 abc\r\n\r\n"] {
        let port = world.serve_bytes(answer);
        let outcome = world.probe(get(port, "/")).await;
        let begins = format!("no HTTP from :{port}/: ");
        assert!(!outcome.succeeded && outcome.summary.starts_with(&begins), "{answer:?}: {outcome:?}");
    }
    let port = world.serve_bytes(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(64 << 10)));
    let outcome = world.probe(get(port, "/")).await;
    assert!(!outcome.succeeded && outcome.summary.contains("too large"), "{outcome:?}");
}

#[tokio::test]
async fn queued_checks_keep_their_timeout() {
    let world = Arc::new(ProbeFixture::with_permits(2));
    let (busy, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let port = world.serve(move |_, mut stream| {
        let (busy, most) = (Arc::clone(&busy), Arc::clone(&most));
        async move {
            most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Not a wait: the duration of an answer.
            tokio::time::sleep(Duration::from_millis(100)).await;
            busy.fetch_sub(1, Ordering::SeqCst);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok();
        }
    });
    let one = |_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.probe(get(port, "/")).await.succeeded })
    };
    let all: Vec<_> = (0..20).map(one).collect();
    for check in all {
        assert!(check.await.unwrap());
    }
    assert_eq!(seen.load(Ordering::SeqCst), 2);

    // One that waits longer for its turn than its timeout.
    let world = ProbeFixture::with_permits(1);
    let released = Arc::new(Notify::new());
    let release = Arc::clone(&released);
    let slow = world.serve(move |_, mut stream| {
        let released = Arc::clone(&released);
        async move {
            released.notified().await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok();
        }
    });
    let silent = world.serve(|_, stream| async move {
        let _held = stream;
        std::future::pending().await
    });
    let mut first = pin!(world.probe(get(slow, "/")));
    let mut second = pin!(world.probe_with_timeout(get(silent, "/"), Duration::from_millis(300)));
    tokio::select! {
        biased;
        outcome = &mut first => panic!("{outcome:?}"),
        outcome = &mut second => panic!("{outcome:?}"),
        // Not a wait: longer than the timeout.
        () = tokio::time::sleep(Duration::from_millis(600)) => {}
    }
    release.notify_one();
    let (first, second) = tokio::join!(first, second);
    assert!(first.succeeded, "{first:?}");
    assert_eq!(second.output(), "no answer within 300ms");
}
