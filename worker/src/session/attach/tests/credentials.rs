//! Registry credentials for images that a manager requests.

use std::sync::Mutex;

use prost::Message;
use warren_image::RegistryError;
use warren_proto::Problem;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1::registry_access::Access;
use warren_security::delivery::DeliveryResponder;
use warren_types::{Id, SecretObjectId};

use super::*;
use crate::fake_manager::FetchReply;
use crate::fixtures::settings;

/// A login of ann for the registry of the image, sealed for the request.
fn login_for(request: &v1::FetchSecretObjectsRequest) -> v1::SealedSecretObject {
    let responder = DeliveryResponder::new(&request.key, settings().node).unwrap();
    let (id, version_number) = (SecretObjectId(Id(9)), 1);
    let login = v1::RegistryLogin { user: "ann".into(), password: "hush".into() };
    let access = v1::RegistryAccess { access: Some(Access::Login(login)) };
    v1::SealedSecretObject {
        key: responder.public_key().to_vec().into(),
        kind: v1::SecretObjectKind::Credential.into(),
        name: "docker.io".into(),
        id: id.to_string(),
        version_number,
        sealed: responder.seal(id, version_number, &access.encode_to_vec()).into(),
    }
}

/// The frames of a pull. Its stream is closed afterwards, since few may be open.
async fn pulled(manager: &mut FakeManager, session: &mut FakeSession) -> Vec<Frame> {
    let mut stream = attached(manager, session, pull(true)).await;
    all_frames(&mut stream, session).await
}

#[tokio::test(start_paused = true)]
async fn pull_uses_cluster_credential_of_registry() {
    let (node, mut manager) = TestNode::start(desired(&[]));
    let mut session = manager.next_welcomed_session().await;
    let asked = Arc::<Mutex<Vec<_>>>::default();
    let asks = Arc::clone(&asked);
    manager.on_fetch(move |request| {
        let login = login_for(&request);
        asks.lock().unwrap().push(request.purpose.unwrap());
        FetchReply::Objects(vec![login])
    });
    let other = Digest::of(b"other");
    node.images.serve(&tag(), other.clone());
    assert_eq!(pulled(&mut manager, &mut session).await.last(), Some(&DONE));
    assert_eq!(node.images.registry_users(), [Some("ann".to_owned())]);
    let need = v1::fetch_secret_objects_request::Purpose::StreamCredential("s1".into());
    assert_eq!(*asked.lock().unwrap(), [need]);
    // A manager that does not answer does not prevent pulls of public images.
    manager.on_fetch(|_| FetchReply::Refusal(tonic::Status::permission_denied("not its stream")));
    assert_eq!(pulled(&mut manager, &mut session).await.last(), Some(&DONE));
    // It is not tried without access that a manager refuses to give.
    manager.on_fetch(|_| {
        let code = tonic::Code::FailedPrecondition;
        FetchReply::Refusal(Problem::new(code, NO_REGISTRY_ACCESS, "it has no tokens").into())
    });
    let output = pulled(&mut manager, &mut session).await;
    assert!(matches!(output.last(), Some(Frame::Error(why)) if why == "it has no tokens"), "{output:?}");
    manager.on_fetch(|_| FetchReply::Refusal(tonic::Status::permission_denied("not its stream")));
    let (registry, image, message) = ("docker.io".to_owned(), "demo:1".to_owned(), "no".to_owned());
    node.images.fail(&tag(), RegistryError::NeedsCredentials { registry, image, message }.into());
    let output = pulled(&mut manager, &mut session).await;
    assert!(matches!(output.last(), Some(Frame::Error(why)) if why.contains("not its stream")), "{output:?}");
    assert_eq!(node.images.registry_users(), [Some("ann".to_owned()), None, None]);
    // The registry demands nothing of managers, and a login of this node.
    manager.on_fetch(|request| {
        let login = request.is_renewal.then(|| login_for(&request));
        FetchReply::Objects(login.into_iter().collect())
    });
    let output = pulled(&mut manager, &mut session).await;
    assert!(
        matches!(output.last(), Some(Frame::Error(why)) if why.contains("needs credentials")),
        "{output:?}"
    );
    assert_eq!(node.images.registry_users()[3..], [None, Some("ann".to_owned())]);
}
