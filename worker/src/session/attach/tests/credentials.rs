//! As whom a registry is asked for an image that a manager wants here.

use std::sync::Mutex;

use warren_image::RegistryError;
use warren_security::delivery::Responder;
use warren_types::{ContentId, Id};

use super::*;
use crate::samples::settings;
use crate::scripted::Deliveries;

#[tokio::test(start_paused = true)]
async fn the_registry_is_asked_as_whom_the_cluster_knows_there() {
    let (node, mut manager) = Node::start(wishing(&[]));
    let mut session = manager.welcomed().await;
    let asked = Arc::<Mutex<Vec<_>>>::default();
    let asks = Arc::clone(&asked);
    manager.delivers(move |request| {
        let responder = Responder::new(&request.key, settings().node).unwrap();
        asks.lock().unwrap().push(request.need.unwrap());
        let (id, number) = (ContentId(Id(9)), 1);
        Deliveries::Gives(vec![v1::SealedDelivery {
            key: responder.public_key().to_vec().into(),
            kind: v1::ContentKind::Credential.into(),
            name: "docker.io".into(),
            id: id.to_string(),
            number,
            sealed: responder.seal(id, number, b"ann\nhush").into(),
        }])
    });
    let other = Digest::of(b"other");
    node.images.gives(&tag(), other.clone());
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    assert_eq!(hear_all(&mut stream, &mut session).await.last(), Some(&DONE));
    assert_eq!(node.images.users(), [Some("ann".to_owned())]);
    let need = v1::fetch_request::Need::StreamCredential("s1".into());
    assert_eq!(*asked.lock().unwrap(), [need]);
    // A manager that does not answer keeps nobody from images for the public.
    manager.delivers(|_| Deliveries::Refuses(tonic::Status::permission_denied("not its stream")));
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    assert_eq!(hear_all(&mut stream, &mut session).await.last(), Some(&DONE));
    let (registry, image, said) = ("docker.io".to_owned(), "demo:1".to_owned(), "no".to_owned());
    node.images.fails(&tag(), RegistryError::NeedsCredentials { registry, image, said }.into());
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    let said = hear_all(&mut stream, &mut session).await;
    assert!(matches!(said.last(), Some(Frame::Failed(why)) if why.contains("not its stream")), "{said:?}");
    assert_eq!(node.images.users(), [Some("ann".to_owned()), None, None]);
}
