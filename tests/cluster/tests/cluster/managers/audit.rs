//! The audit lines of three managers.

use tonic::{Code, Request};
use warren_proto::v1;
use warren_proto::v1::audit_response::Message;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::secret_objects_client::SecretObjectsClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_types::{Id, SecretObjectId};

use super::group::{ManagerGroup, repeated};

const SECRET: &str = "correct horse battery staple";

/// The lines and the names of the managers whose lines are missing, read through a manager.
async fn read(
    group: &ManagerGroup,
    through: usize,
    request: v1::AuditRequest,
) -> (Vec<v1::AuditLine>, Vec<String>) {
    let mut cluster = ClusterClient::new(group.channel(through).await);
    let mut stream = cluster.audit(request).await.unwrap().into_inner();
    let (mut lines, mut missing) = (Vec::new(), Vec::new());
    while let Some(answer) = stream.message().await.unwrap() {
        match answer.message {
            Some(Message::Line(line)) => lines.push(line),
            Some(Message::Warning(warning)) => missing.push(warning.manager_name),
            other => panic!("{other:?}"),
        }
    }
    (lines, missing)
}

/// All bytes of the audit files; a manager that recorded nothing has none.
fn files(group: &ManagerGroup) -> String {
    let mut text = String::new();
    for host in &group.hosts {
        for entry in std::fs::read_dir(host.data_dir().join("manager/audit")).into_iter().flatten() {
            text += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_recorded_once_and_merged() {
    let mut group = ManagerGroup::of_three().await;
    let follower = group.follower().await;
    let created = group.create(follower, "web").await.unwrap();
    let secrets = SecretObjectsClient::new(group.channel(follower).await);
    let secret = v1::CreateSecretObjectRequest {
        id: SecretObjectId(Id(77)).to_string(),
        kind: v1::SecretObjectKind::Secret.into(),
        name: "password".into(),
        data: SECRET.as_bytes().into(),
        ..Default::default()
    };
    repeated(|| async { secrets.clone().create(secret.clone()).await }).await.unwrap();
    let reading = v1::ReadSecretObjectRequest {
        kind: v1::SecretObjectKind::Secret.into(),
        reference: "password".into(),
        version_number: None,
    };
    let refused = repeated(|| async { secrets.clone().read(reading.clone()).await }).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // A worker's certificate does not permit writes.
    let worker = group.node("w1").await;
    let leader = group.leader().await;
    let roots = group.hosts[leader].manager().roots();
    let mut denied = ServicesClient::new(group.hosts[leader].channel(&roots, Some(&worker)).await);
    let remove = v1::RemoveServiceRequest { reference: "web".into(), ..Default::default() };
    assert_eq!(denied.remove(Request::new(remove)).await.unwrap_err().code(), Code::PermissionDenied);

    let (lines, missing) = read(&group, leader, v1::AuditRequest::default()).await;
    assert!(missing.is_empty(), "{missing:?}");
    assert!(lines.is_sorted_by_key(|line| line.at), "{lines:?}");
    // An attempt after which a call was repeated has its own line.
    let final_lines = lines.iter().filter(|line| line.code != "UNAVAILABLE");
    let of = |method: &str| final_lines.clone().filter(|line| line.method == method).collect::<Vec<_>>();
    let [create] = of("Services/Create")[..] else { panic!("{lines:?}") };
    let object = create.object.clone().unwrap();
    assert_eq!((object.kind.as_str(), object.id, object.name.as_str()), ("service", created.id, "web"));
    assert_eq!(object.version, Some(created.version));
    assert_eq!(create.manager_name, group.hosts[follower].config().name.to_string());
    let caller = create.caller.clone().unwrap();
    assert_eq!((caller.kind.as_str(), caller.role.as_str()), ("certificate", "admin"));
    assert!(caller.address.starts_with("127.0.0.1:") && !caller.name.is_empty(), "{caller:?}");
    let [remove] = of("Services/Remove")[..] else { panic!("{lines:?}") };
    let caller = remove.caller.clone().unwrap();
    assert_eq!((remove.outcome.as_str(), remove.code.as_str()), ("denied", "PERMISSION_DENIED"));
    assert_eq!((caller.role.as_str(), caller.name.as_str()), ("worker", "w1"));
    let [read_line] = of("SecretObjects/Read")[..] else { panic!("{lines:?}") };
    assert_eq!((read_line.outcome.as_str(), read_line.reason.as_str()), ("denied", "SECRET_NOT_READABLE"));
    assert_eq!(of("SecretObjects/Create").len(), 1);
    assert!(of("Managers/Join").len() == 2 && of("Services/List").is_empty(), "{lines:?}");
    let text = files(&group);
    assert!(text.contains("\"password\"") && !text.contains(SECRET), "{text}");

    let only = v1::AuditRequest { user: "w1".into(), method: "services".into(), ..Default::default() };
    assert_eq!(read(&group, follower, only).await.0, std::slice::from_ref(remove));
    let wrong = v1::AuditRequest { since: Some(5), until: Some(5), ..Default::default() };
    let refused = ClusterClient::new(group.channel(leader).await).audit(wrong).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);

    let name = group.hosts[follower].config().name.to_string();
    group.hosts[follower].stop().await;
    let leader = group.leader().await;
    let (rest, missing) = read(&group, leader, v1::AuditRequest::default()).await;
    assert_eq!(missing, std::slice::from_ref(&name));
    assert!(!rest.is_empty() && rest.iter().all(|line| line.manager_name != name));
}
