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

use super::fake::{Manager, Script, Serving, admin, authority};
use crate::contexts::Target;
use crate::{Change, Client, Error, LogsOf, LogsWish};

/// Managers of one cluster, each with what it serves; a number in place of one is a port without a manager.
fn cluster(managers: &[&Manager]) -> (CertificateAuthority, Vec<String>, Vec<Option<Serving>>) {
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

fn target(ours: &CertificateAuthority, addresses: &[String]) -> Target {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Target::Tcp { addresses, identity: admin(ours, ours) }
}

fn no_leader() -> Status {
    Problem::new(Code::Unavailable, "NO_LEADER", "the managers have no leader").into()
}

async fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn who_does_not_answer_is_passed_by() {
    let manager = Manager::default();
    let (ours, addresses, _serving) = cluster(&[&manager]);
    // The kernel accepts, nobody speaks: a process that is stopped.
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stopped = (stopped.local_addr().unwrap().to_string(), stopped);
    for first in [nobody().await, stopped.0.clone()] {
        let begun = Instant::now();
        let known = [first, addresses[0].clone()];
        let client = Client::connect(&target(&ours, &known)).await.unwrap();
        assert_eq!(client.address(), addresses[0]);
        client.services().get("web").await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn where_nobody_answers_each_is_named() {
    let (ours, known) = (authority(), [nobody().await, nobody().await]);
    let error = Client::connect(&target(&ours, &known)).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
    for address in &known {
        assert!(error.to_string().contains(&format!("{address}: Connection refused")), "{error}");
    }
    // What says more than that is told.
    let (theirs, manager) = (authority(), Manager::default());
    let (address, _serving) = manager.serve_port(&theirs, Role::Manager);
    let error = Client::connect(&target(&ours, &[known[0].clone(), address])).await.unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error:?}");
}

#[tokio::test]
async fn a_manager_without_a_leader_is_left_for_one_that_has_it() {
    let alone = std::iter::repeat_with(no_leader).take(100).collect();
    let alone = Manager::new(Script { gets: alone, ..Script::default() });
    let knowing = Manager::default();
    let (ours, addresses, _serving) = cluster(&[&alone, &knowing]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    let begun = Instant::now();
    for name in ["a", "b", "c"] {
        client.services().get(name).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(
        (alone.asked(), knowing.asked()),
        (vec!["a".to_owned()], vec!["a".into(), "b".into(), "c".into()])
    );
    assert_eq!(client.address(), addresses[1]);
}

fn disk_full() -> Status {
    Problem::new(Code::ResourceExhausted, "DISK_FULL", "the disk of this manager is full: /d has 0B free")
        .into()
}

#[tokio::test]
async fn a_manager_with_a_full_disk_is_left_for_one_with_room() {
    let script = Script { gets: std::iter::repeat_with(disk_full).take(100).collect(), ..Script::default() };
    let (full, other) = (Manager::new(script), Manager::default());
    let (ours, addresses, _serving) = cluster(&[&full, &other]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    client.services().get("web").await.unwrap();
    assert_eq!((full.asked().len(), other.asked().len()), (1, 1));
}

#[tokio::test]
async fn when_all_disks_are_full_each_is_asked_once_and_named() {
    let full = || {
        Manager::new(Script {
            gets: std::iter::repeat_with(disk_full).take(100).collect(),
            ..Script::default()
        })
    };
    let managers = [full(), full(), full()];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    for known in [&addresses[..], &addresses[..1]] {
        let client = Client::connect(&target(&ours, known)).await.unwrap();
        let error = client.services().get("web").await.unwrap_err();
        assert!(matches!(&error, Error::Refused { problem } if problem.reason == "DISK_FULL"), "{error:?}");
        let named = |address: &&String| error.to_string().contains(&format!("{address}: the disk of this"));
        let wanted = if known.len() > 1 { known.len() } else { 0 };
        assert_eq!(known.iter().filter(named).count(), wanted, "{error}");
    }
    assert_eq!(managers.map(|manager| manager.asked().len()), [2, 1, 1]);
}

#[tokio::test]
async fn what_is_refused_for_good_elsewhere_is_the_answer() {
    let full = Manager::new(Script { gets: [disk_full()].into(), ..Script::default() });
    let missing = Problem::new(Code::NotFound, "NOT_FOUND", "there is no service web");
    let other = Manager::new(Script { gets: [missing.clone().into()].into(), ..Script::default() });
    let (ours, addresses, _serving) = cluster(&[&full, &other]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    let error = client.services().get("web").await.unwrap_err();
    assert_eq!(error.to_string(), Error::Refused { problem: missing }.to_string());
}

#[tokio::test]
async fn while_none_has_a_leader_all_are_asked_again_until_one_has() {
    let script =
        |times| Script { gets: std::iter::repeat_with(no_leader).take(times).collect(), ..Script::default() };
    let managers = [Manager::new(script(3)), Manager::new(script(100)), Manager::new(script(100))];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    client.services().get("web").await.unwrap();
    assert_eq!(managers.map(|manager| manager.asked().len()), [4, 3, 3], "in turn");
}

#[tokio::test]
async fn when_all_have_no_leader_their_words_stay() {
    let script =
        || Script { gets: std::iter::repeat_with(no_leader).take(1000).collect(), ..Script::default() };
    let managers = [Manager::new(script()), Manager::new(script())];
    let (ours, addresses, _serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    let (begun, within) = (Instant::now(), Duration::from_secs(1));
    let message = v1::Reference { reference: "web".into() };
    let call = |channel, request| async move { ServicesClient::new(channel).get(request).await };
    let error = client.unary_within(within, message, call).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem } if problem.reason == "NO_LEADER"), "{error:?}");
    assert!((within / 2..2 * within).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// How often a caller was told that it waits for a leader.
fn counting(client: Client) -> (Client, Arc<AtomicUsize>) {
    let told = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&told);
    let tell = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (client.on_leaderless(tell), told)
}

#[tokio::test]
async fn a_leader_is_waited_for_also_over_a_socket_which_is_told_but_not_for_ever() {
    let get = async |leaderless: usize| {
        let gets = std::iter::repeat_with(no_leader).take(leaderless).collect();
        let manager = Manager::new(Script { gets, ..Script::default() });
        let (target, _serving) = manager.serve_socket();
        let (client, told) = counting(Client::connect(&target).await.unwrap());
        let begun = Instant::now();
        let got = client.services().get("web").await;
        (got, told.load(Ordering::Relaxed), begun.elapsed())
    };
    let (soon, late, never) = tokio::join!(get(3), get(7), get(1000));
    // A busy machine can take longer than that for three answers, and then it has to be told.
    let told_early = soon.1 > 0 && soon.2 < Duration::from_secs(1);
    assert!(soon.0.is_ok() && soon.1 <= 1 && !told_early, "an election is nothing to speak of: {soon:?}");
    assert!(late.0.is_ok() && late.1 == 1, "{late:?}");
    let (error, took) = (never.0.unwrap_err(), never.2);
    assert!(error.is_no_leader() && never.1 == 1, "{error:?}");
    assert!((Duration::from_secs(5)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_write_that_may_have_happened_stays_one_when_the_leader_is_gone_for_good() {
    let doubt = Problem::new(Code::Unavailable, "UNCONFIRMED", "the write may still happen").into();
    let gets = std::iter::once(doubt).chain(std::iter::repeat_with(no_leader).take(1000)).collect();
    let manager = Manager::new(Script { gets, ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = client.services().get("web").await.unwrap_err();
    assert!(matches!(&error, Error::Refused { problem } if problem.reason == "UNCONFIRMED"), "{error:?}");
}

#[tokio::test]
async fn a_manager_that_dies_is_left_also_by_clones() {
    let managers = [Manager::default(), Manager::default()];
    let (ours, addresses, mut serving) = cluster(&managers.iter().collect::<Vec<_>>());
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    client.services().get("a").await.unwrap();
    let clone = client.clone();
    serving[0].take();
    client.services().get("b").await.unwrap();
    clone.services().get("c").await.unwrap();
    assert_eq!(managers[1].asked(), ["b", "c"]);
    assert_eq!((client.address(), clone.address()), (addresses[1].clone(), addresses[1].clone()));
}

#[tokio::test]
async fn managers_that_are_told_of_are_gone_to_and_stale_reads_are_marked() {
    let (first, second) = (Manager::default(), Manager::default());
    let (ours, addresses, mut serving) = cluster(&[&first, &second]);
    first.0.lock().unwrap().managers = addresses.join(",");
    let client = Client::connect(&target(&ours, &addresses[..1])).await.unwrap().stale(true);
    assert!(client.manager_addresses().is_empty());
    client.services().get("a").await.unwrap();
    let told: Vec<String> = client.manager_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(told, addresses);
    serving[0].take();
    // The context knew only the first.
    client.services().get("b").await.unwrap();
    assert_eq!(second.asked(), ["b"]);
    assert_eq!((first.0.lock().unwrap().stale, second.0.lock().unwrap().stale), (1, 1));
    client.stale(false).services().get("c").await.unwrap();
    assert_eq!(second.0.lock().unwrap().stale, 1);
}

#[tokio::test]
async fn a_manager_of_an_earlier_life_of_the_cluster_is_passed_over() {
    let (older, newer) = (Manager::default(), Manager::default());
    let (ours, addresses, _serving) = cluster(&[&older, &newer]);
    (older.0.lock().unwrap().life, newer.0.lock().unwrap().life) = (3, 7);
    older.0.lock().unwrap().managers = addresses[0].clone();
    let target = target(&ours, &addresses);
    let client = Client::connect(&target).await.unwrap();
    client.services().get("a").await.unwrap();
    assert_eq!((client.life(), older.asked()), (3, vec!["a".to_owned()]), "it knows of no other");
    let client = Client::connect(&target).await.unwrap().having_seen(7);
    client.services().get("b").await.unwrap();
    assert_eq!((newer.asked(), older.asked().len()), (vec!["b".to_owned()], 1));
    // The new one is away: the old one is of no use to whoever has seen it.
    let client = Client::connect(&self::target(&ours, &addresses[..1])).await.unwrap().having_seen(7);
    let refused = client.services().get("c").await.unwrap_err().to_string();
    assert!(refused.contains("a life that is over"), "{refused}");
    assert_eq!((client.life(), older.asked().len()), (7, 1));
}

#[tokio::test]
async fn what_is_no_list_of_managers_is_ignored() {
    let manager = Manager::default();
    let (ours, addresses, _serving) = cluster(&[&manager]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    for text in ["", "nonsense", "10.0.0.7:8080,", "10.0.0.7"] {
        manager.0.lock().unwrap().managers = text.to_owned();
        client.services().get("a").await.unwrap();
        assert!(client.manager_addresses().is_empty(), "{text}");
    }
}

#[tokio::test]
async fn a_watch_goes_on_at_another_manager() {
    let event = |index| v1::WatchEvent { index, change: Some(Change::Resync(v1::Resync {})) };
    let changed =
        |index, name| v1::WatchEvent { index, change: Some(Change::Service(super::fake::service(name))) };
    let (first, second) = (Manager::default(), Manager::default());
    first.0.lock().unwrap().watches = [vec![Ok(event(5)), Ok(changed(7, "a")), Err(no_leader())]].into();
    second.0.lock().unwrap().watches = [vec![Ok(event(7)), Ok(changed(8, "b"))]].into();
    let (ours, addresses, _serving) = cluster(&[&first, &second]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(match watch.next().await.unwrap() {
            Change::Service(service) => service.spec.unwrap().name,
            Change::Resync(_) => "-".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!((seen, second.asked()), (vec!["-".to_owned(), "a".into(), "b".into()], vec!["7".to_owned()]));
}

#[tokio::test]
async fn logs_go_on_at_another_manager_without_a_line_twice() {
    let line = |at_ns: u64, text: &str| {
        let line = v1::LogLine { at_ns, text: text.as_bytes().to_vec().into(), ..Default::default() };
        let entry = Some(v1::log_entry::Entry::Line(line));
        Ok(v1::LogEntry { task_id: "t".into(), entry, ..Default::default() })
    };
    let (first, second) = (Manager::default(), Manager::default());
    let ms = 1_000_000;
    first.0.lock().unwrap().logs = [vec![line(ms, "1"), line(5 * ms, "2"), Err(no_leader())]].into();
    second.0.lock().unwrap().logs = [vec![line(5 * ms, "2"), line(5 * ms, "3"), line(6 * ms, "4")]].into();
    let (ours, addresses, _serving) = cluster(&[&first, &second]);
    let client = Client::connect(&target(&ours, &addresses)).await.unwrap();
    let wish = LogsWish { follow: true, tail: Some(9), since: None };
    let mut entries = client.logs().read(LogsOf::Service("web".into()), wish).await.unwrap();
    let mut read = String::new();
    while let Some(entry) = entries.next().await.unwrap() {
        let Some(v1::log_entry::Entry::Line(line)) = entry.entry else { panic!("{entry:?}") };
        read += std::str::from_utf8(&line.text).unwrap();
    }
    assert_eq!(read, "1234");
    let again =
        v1::ReadLogsRequest { service: "web".into(), follow: true, since: Some(5), ..Default::default() };
    assert_eq!(second.asked(), [format!("{again:?}")]);
}
