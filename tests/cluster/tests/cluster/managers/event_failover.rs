//! Events are one sequence on all managers, and continue at another one.

use tokio::time::timeout;
use warren_client::{Client, ClientTarget, EventMessage, EventQuery, EventStart, EventStream};
use warren_proto::v1;

use super::group::ManagerGroup;
use crate::fixture::{WAIT_DEADLINE, new_id, spec};

type Seen = ((u64, u32), String);

fn seen(position: v1::EventPosition, event: v1::ClusterEvent) -> Seen {
    let changes: Vec<String> =
        event.changes.iter().map(|it| format!("{} {}>{}", it.field, it.from, it.to)).collect();
    let text = format!("{} {}/{} {} {changes:?}", event.at, event.kind, event.name, event.action);
    ((position.index, position.number.unwrap()), text)
}

/// Reads until the service was created.
async fn until_created(events: &mut EventStream, name: &str, all: &mut Vec<Seen>) {
    loop {
        let next = timeout(WAIT_DEADLINE, events.next()).await.expect("an event in time");
        let Some(message) = next.unwrap() else { panic!("the stream ended before {name}") };
        let EventMessage::Event(position, event) = message else { continue };
        let is_last = (event.kind.as_str(), event.name.as_str()) == ("service", name);
        all.push(seen(position, *event));
        if is_last {
            return;
        }
    }
}

async fn create(client: &Client, names: &[String]) {
    for name in names {
        client.services().create(new_id(), &spec(name, 1)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_continue_at_another_manager_without_loss_or_repetition() {
    let mut group = ManagerGroup::of_three().await;
    group.all_vote().await;
    let identity = group.identity();
    let addresses = group.hosts.iter().map(|host| host.advertised()).collect();
    let client = Client::connect(&ClientTarget::Tcp { addresses, identity: identity.clone() }).await.unwrap();
    let query = EventQuery { follow: true, start: EventStart::New, ..EventQuery::default() };
    let mut events = client.cluster().events(query);
    assert!(matches!(events.next().await.unwrap(), Some(EventMessage::Begin(_))));
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let mut all = Vec::new();
    create(&client, &names[..10]).await;
    until_created(&mut events, "s4", &mut all).await;
    let answers = group.hosts.iter().position(|host| host.advertised().to_string() == client.address());
    group.hosts[answers.unwrap()].drop_manager().await;
    create(&client, &names[10..]).await;
    until_created(&mut events, "s19", &mut all).await;
    assert!(all.is_sorted_by(|one, next| one.0 < next.0), "none is repeated: {all:?}");

    let (first, last) = (all[0].0, all.last().unwrap().0);
    for host in group.hosts.iter().filter(|host| host.is_running()) {
        let target = ClientTarget::Tcp { addresses: vec![host.advertised()], identity: identity.clone() };
        let other = Client::connect(&target).await.unwrap();
        let start = EventStart::After { index: first.0 - 1, number: None };
        let mut events = other.cluster().events(EventQuery { start, ..EventQuery::default() });
        let mut found = Vec::new();
        while let Some(message) = events.next().await.unwrap() {
            let EventMessage::Event(position, event) = message else { continue };
            found.push(seen(position, *event));
        }
        found.retain(|event| first <= event.0 && event.0 <= last);
        assert_eq!(found, all, "{}", host.name);
    }
}
