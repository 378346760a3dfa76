//! Several managers: which of them is asked, and when another one is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::{Code, Status};
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::{Problem, v1};
use warren_security::{CertificateAuthority, Role};

use super::scripted_server::{FakeScript, FakeServer, ScriptedApiServer, admin, authority};
use super::{LONG_TIMES, closed_port};
use crate::client_tls::CONNECT_DEADLINE;
use crate::contexts::ClientTarget;
use crate::dial::SwitchTimes;
use crate::{Change, Client, Error, LogOptions, LogTarget};

/// Managers of one cluster, each with what it serves; a number in place of one is a port without a manager.
fn cluster(managers: &[&ScriptedApiServer]) -> (CertificateAuthority, Vec<String>, Vec<Option<FakeServer>>) {
    let ours = authority();
    let (addresses, serving) = managers
        .iter()
        .map(|manager| {
            let (address, serving) = manager.serve_port(&ours, Role::Manager);
            (address, Some(serving))
        })
        .unzip();
    (ours, addresses, serving)
}

fn target(ours: &CertificateAuthority, addresses: &[String]) -> ClientTarget {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    ClientTarget::Tcp { addresses, identity: admin(ours, ours) }
}

/// A client of the first manager, which leaves it only for an error.
async fn connect(ours: &CertificateAuthority, addresses: &[String]) -> Client {
    Client::connect_timed(&target(ours, addresses), LONG_TIMES).await.unwrap()
}

fn no_leader() -> Status {
    Problem::new(Code::Unavailable, "NO_LEADER", "the managers have no leader").into()
}

#[tokio::test]
async fn unreachable_manager_is_skipped() {
    let manager = ScriptedApiServer::default();
    let (ours, addresses, _serving) = cluster(&[&manager]);
    // The kernel accepts, and no program answers: a process that is stopped.
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (closed, _held) = closed_port();
    let times = SwitchTimes { keep_alive: LONG_TIMES.keep_alive, ..SwitchTimes::default() };
    for first in [closed, stopped.local_addr().unwrap().to_string()] {
        let known = target(&ours, &[first, addresses[0].clone()]);
        let mut took: Vec<Duration> = Vec::new();
        // A client that waits for the first manager never keeps the limit; a loaded machine exceeds it at times.
        while took.len() < 5 && took.last().is_none_or(|took| *took >= CONNECT_DEADLINE) {
            let begun = Instant::now();
            let client = Client::connect_timed(&known, times).await.unwrap();
            assert_eq!(client.address(), addresses[0]);
            client.services().get("web").await.unwrap();
            took.push(begun.elapsed());
        }
        assert!(took.last().is_some_and(|took| *took < CONNECT_DEADLINE), "{took:?}");
    }
}

#[tokio::test]
async fn all_unreachable_managers_are_named() {
    let (ours, held) = (authority(), [closed_port(), closed_port()]);
    let known = held.each_ref().map(|(address, _)| address.clone());
    let error = Client::connect(&target(&ours, &known)).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
    for address in &known {
        assert!(error.to_string().contains(&format!("{address}: Connection refused")), "{error}");
    }
    // What says more than that is told.
    let (theirs, manager) = (authority(), ScriptedApiServer::default());
    let (address, _serving) = manager.serve_port(&theirs, Role::Manager);
    let error = Client::connect(&target(&ours, &[known[0].clone(), address])).await.unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error:?}");
}

#[tokio::test]
async fn client_switches_from_leaderless_manager() {
    let alone = std::iter::repeat_with(no_leader).take(100).collect();
    let alone = ScriptedApiServer::new(FakeScript { gets: alone, ..FakeScript::default() });
    let knowing = ScriptedApiServer::default();
    let (ours, addresses, _serving) = cluster(&[&alone, &knowing]);
    let client = connect(&ours, &addresses).await;
    for name in ["a", "b", "c"] {
        client.services().get(name).await.unwrap();
    }
    assert_eq!(
        (alone.requests(), knowing.requests()),
        (vec!["a".to_owned()], vec!["a".into(), "b".into(), "c".into()])
    );
    assert_eq!(client.address(), addresses[1]);
}

fn disk_full() -> Status {
    Problem::new(Code::ResourceExhausted, "DISK_FULL", "the disk of this manager is full: /d has 0B free")
        .into()
}

#[tokio::test]
async fn full_disk_switches_manager() {
    let script =
        FakeScript { gets: std::iter::repeat_with(disk_full).take(100).collect(), ..FakeScript::default() };
    let (full, other) = (ScriptedApiServer::new(script), ScriptedApiServer::default());
    let (ours, addresses, _serving) = cluster(&[&full, &other]);
    let client = connect(&ours, &addresses).await;
    client.services().get("web").await.unwrap();
    assert_eq!((full.requests().len(), other.requests().len()), (1, 1));
}

#[tokio::test]
async fn when_all_disks_are_full_each_is_asked_once_and_named() {
    let full = || {
        ScriptedApiServer::new(FakeScript {
            gets: std::iter::repeat_with(disk_full).take(100).collect(),
            ..FakeScript::default()
        })
    };
    let managers = [full(), full(), full()];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    for known in [&addresses[..], &addresses[..1]] {
        let client = connect(&ours, known).await;
        let error = client.services().get("web").await.unwrap_err();
        assert!(matches!(&error, Error::Refused { problem } if problem.reason == "DISK_FULL"), "{error:?}");
        let named = |address: &&String| error.to_string().contains(&format!("{address}: the disk of this"));
        let expected = if known.len() > 1 { known.len() } else { 0 };
        assert_eq!(known.iter().filter(named).count(), expected, "{error}");
    }
    assert_eq!(managers.map(|manager| manager.requests().len()), [2, 1, 1]);
}

#[tokio::test]
async fn permanent_refusal_is_the_answer() {
    let full = ScriptedApiServer::new(FakeScript { gets: [disk_full()].into(), ..FakeScript::default() });
    let missing = Problem::new(Code::NotFound, "NOT_FOUND", "there is no service web");
    let other =
        ScriptedApiServer::new(FakeScript { gets: [missing.clone().into()].into(), ..FakeScript::default() });
    let (ours, addresses, _serving) = cluster(&[&full, &other]);
    let client = connect(&ours, &addresses).await;
    let error = client.services().get("web").await.unwrap_err();
    assert_eq!(error.to_string(), Error::Refused { problem: missing }.to_string());
}

#[tokio::test]
async fn leaderless_managers_are_retried_in_turn() {
    let script = |times| FakeScript {
        gets: std::iter::repeat_with(no_leader).take(times).collect(),
        ..FakeScript::default()
    };
    let managers = [
        ScriptedApiServer::new(script(3)),
        ScriptedApiServer::new(script(100)),
        ScriptedApiServer::new(script(100)),
    ];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = connect(&ours, &addresses).await;
    client.services().get("web").await.unwrap();
    assert_eq!(managers.map(|manager| manager.requests().len()), [4, 3, 3], "in turn");
}

#[tokio::test]
async fn leaderless_error_is_kept() {
    let script = || FakeScript {
        gets: std::iter::repeat_with(no_leader).take(1000).collect(),
        ..FakeScript::default()
    };
    let managers = [ScriptedApiServer::new(script()), ScriptedApiServer::new(script())];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = connect(&ours, &addresses).await;
    let (begun, within) = (Instant::now(), Duration::from_secs(3));
    let message = v1::Reference { reference: "web".into() };
    let call = |channel, request| async move { ServicesClient::new(channel).get(request).await };
    let error = client.unary_within(within, message, call).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem } if problem.reason == "NO_LEADER"), "{error:?}");
    assert!((within / 2..20 * within).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// How often a caller was told that it waits for a leader.
fn counting(client: Client) -> (Client, Arc<AtomicUsize>) {
    let reported = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reported);
    let tell = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (client.on_leaderless(tell), reported)
}

#[tokio::test]
async fn leader_wait_over_socket_is_bounded_and_notified() {
    let get = async |leaderless: usize| {
        let gets = std::iter::repeat_with(no_leader).take(leaderless).collect();
        let manager = ScriptedApiServer::new(FakeScript { gets, ..FakeScript::default() });
        let (target, _serving) = manager.serve_socket();
        let (client, reported) = counting(Client::connect(&target).await.unwrap());
        let begun = Instant::now();
        let got = client.services().get("web").await;
        (got, reported.load(Ordering::Relaxed), begun.elapsed(), manager.requests().len())
    };
    let (soon, late, never) = tokio::join!(get(3), get(6), get(1000));
    // A busy machine can take longer than that for three answers, and then it has to be told.
    let told_early = soon.1 > 0 && soon.2 < Duration::from_secs(1);
    assert!(soon.0.is_ok() && soon.1 <= 1 && !told_early, "an election is nothing to speak of: {soon:?}");
    assert!(late.0.is_ok() && late.1 == 1, "{late:?}");
    let (error, took, asked) = (never.0.unwrap_err(), never.2, never.3);
    assert!(error.is_no_leader() && never.1 == 1, "{error:?}");
    // There are nine attempts in five seconds, and twice as many within the deadline of a call.
    assert!(took >= Duration::from_secs(5) && asked < 15, "{took:?}, {asked} attempts");
}

#[tokio::test]
async fn indeterminate_write_stays_indeterminate() {
    let doubt = Problem::new(Code::Unavailable, "UNCONFIRMED", "the write may still happen").into();
    let gets = std::iter::once(doubt).chain(std::iter::repeat_with(no_leader).take(1000)).collect();
    let manager = ScriptedApiServer::new(FakeScript { gets, ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = client.services().get("web").await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem } if problem.reason == "UNCONFIRMED"), "{error:?}");
}

#[tokio::test]
async fn clones_switch_from_unreachable_manager_too() {
    let managers = [ScriptedApiServer::default(), ScriptedApiServer::default()];
    let (ours, addresses, mut serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = connect(&ours, &addresses).await;
    client.services().get("a").await.unwrap();
    let clone = client.clone();
    serving[0].take();
    client.services().get("b").await.unwrap();
    clone.services().get("c").await.unwrap();
    assert_eq!(managers[1].requests(), ["b", "c"]);
    assert_eq!((client.address(), clone.address()), (addresses[1].clone(), addresses[1].clone()));
}

#[tokio::test]
async fn advertised_managers_are_used_and_stale_reads_marked() {
    let (first, second) = (ScriptedApiServer::default(), ScriptedApiServer::default());
    let (ours, addresses, mut serving) = cluster(&[&first, &second]);
    first.0.lock().unwrap().managers = addresses.join(",");
    let client = connect(&ours, &addresses[..1]).await.stale(true);
    assert!(client.manager_addresses().is_empty());
    client.services().get("a").await.unwrap();
    let reported: Vec<String> = client.manager_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(reported, addresses);
    serving[0].take();
    // The context knew only the first.
    client.services().get("b").await.unwrap();
    assert_eq!(second.requests(), ["b"]);
    assert_eq!((first.0.lock().unwrap().stale, second.0.lock().unwrap().stale), (1, 1));
    client.stale(false).services().get("c").await.unwrap();
    assert_eq!(second.0.lock().unwrap().stale, 1);
}

#[tokio::test]
async fn manager_of_older_incarnation_is_skipped() {
    let (older, newer) = (ScriptedApiServer::default(), ScriptedApiServer::default());
    let (ours, addresses, _serving) = cluster(&[&older, &newer]);
    (older.0.lock().unwrap().incarnation, newer.0.lock().unwrap().incarnation) = (3, 7);
    older.0.lock().unwrap().managers = addresses[0].clone();
    let client = connect(&ours, &addresses).await;
    client.services().get("a").await.unwrap();
    assert_eq!((client.incarnation(), older.requests()), (3, vec!["a".to_owned()]), "it knows of no other");
    let client = connect(&ours, &addresses).await.with_known_incarnation(7);
    client.services().get("b").await.unwrap();
    assert_eq!((newer.requests(), older.requests().len()), (vec!["b".to_owned()], 1));
    // The new one is away: the old one is of no use to whoever has seen it.
    let client = connect(&ours, &addresses[..1]).await.with_known_incarnation(7);
    let refused = client.services().get("c").await.unwrap_err().to_string();
    assert!(refused.contains("an earlier incarnation"), "{refused}");
    assert_eq!((client.incarnation(), older.requests().len()), (7, 1));
}

#[tokio::test]
async fn invalid_manager_list_is_ignored() {
    let manager = ScriptedApiServer::default();
    let (ours, addresses, _serving) = cluster(&[&manager]);
    let client = connect(&ours, &addresses).await;
    for text in ["", "nonsense", "10.0.0.7:8080,", "10.0.0.7"] {
        manager.0.lock().unwrap().managers = text.to_owned();
        client.services().get("a").await.unwrap();
        assert!(client.manager_addresses().is_empty(), "{text}");
    }
}

#[tokio::test]
async fn watch_continues_at_another_manager() {
    let event = |index| v1::WatchEvent { index, change: Some(Change::Resync(v1::Resync {})) };
    let changed = |index, name| v1::WatchEvent {
        index,
        change: Some(Change::Service(super::scripted_server::service(name))),
    };
    let (first, second) = (ScriptedApiServer::default(), ScriptedApiServer::default());
    first.0.lock().unwrap().watches = [vec![Ok(event(5)), Ok(changed(7, "a")), Err(no_leader())]].into();
    second.0.lock().unwrap().watches = [vec![Ok(event(7)), Ok(changed(8, "b"))]].into();
    let (ours, addresses, _serving) = cluster(&[&first, &second]);
    let client = connect(&ours, &addresses).await;
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(match watch.next().await.unwrap() {
            Change::Service(service) => service.spec.unwrap().name,
            Change::Resync(_) => "-".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        (seen, second.requests()),
        (vec!["-".to_owned(), "a".into(), "b".into()], vec!["7".to_owned()])
    );
}

#[tokio::test]
async fn logs_continue_at_another_manager_without_duplicates() {
    let line = |at_ns: u64, text: &str| {
        let line = v1::LogLine { at_ns, text: text.as_bytes().to_vec().into(), ..Default::default() };
        let entry = Some(v1::log_entry::Entry::Line(line));
        Ok(v1::LogEntry { task_id: "t".into(), entry, ..Default::default() })
    };
    let (first, second) = (ScriptedApiServer::default(), ScriptedApiServer::default());
    let ms = 1_000_000;
    first.0.lock().unwrap().logs = [vec![line(ms, "1"), line(5 * ms, "2"), Err(no_leader())]].into();
    second.0.lock().unwrap().logs = [vec![line(5 * ms, "2"), line(5 * ms, "3"), line(6 * ms, "4")]].into();
    let (ours, addresses, _serving) = cluster(&[&first, &second]);
    let client = connect(&ours, &addresses).await;
    let request = LogOptions { follow: true, tail: Some(9), ..LogOptions::default() };
    let mut entries = client.logs().read(LogTarget::Service("web".into()), request).await.unwrap();
    let mut read = String::new();
    while let Some(entry) = entries.next().await.unwrap() {
        let Some(v1::log_entry::Entry::Line(line)) = entry.entry else { panic!("{entry:?}") };
        read += std::str::from_utf8(&line.text).unwrap();
    }
    assert_eq!(read, "1234");
    let again =
        v1::ReadLogsRequest { service: "web".into(), follow: true, since: Some(5), ..Default::default() };
    assert_eq!(second.requests(), [format!("{again:?}")]);
}
