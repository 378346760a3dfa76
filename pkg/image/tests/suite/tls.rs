//! Registries behind TLS. Those on loopback are plain by default, so they are called 0.0.0.0 here, which
//! Linux takes for this machine too.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;
use warren_image::{Error, RegistryError};

use crate::scripted::{Reply, Sample, Scripted};
use crate::world::{World, registries};

fn certified(name: &str) -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed([name.to_owned()]).unwrap()
}

fn acceptor(key: &CertifiedKey<KeyPair>) -> TlsAcceptor {
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .unwrap();
    Arc::new(config).into()
}

fn name(server: &Scripted) -> String {
    format!("0.0.0.0:{}/x:1", server.port())
}

async fn tls_error(world: &World, server: &Scripted) -> String {
    let error = world.pull(&name(server)).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Tls { .. })), "{error}");
    assert!(!error.is_transient());
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_with_those_who_are_trusted() {
    let key = certified("0.0.0.0");
    let sample = Sample::new(30, &[100_000]);
    let honest = sample.clone();
    let server = Scripted::start_tls(acceptor(&key), move |request| honest.answer(request)).await;
    let stranger = World::start();
    let error = tls_error(&stranger, &server).await;
    assert!(error.contains("UnknownIssuer") && error.contains("install its authority"), "{error}");
    assert!(server.seen("").is_empty());
    stranger.assert_nothing().await;

    let mut trusting = registries();
    trusting.trust(key.cert.der().to_vec()).unwrap();
    let world = World::with(trusting);
    world.pull(&name(&server)).await.unwrap();

    // Another name's certificate is not good enough, whoever signed it.
    let other = Scripted::start_tls(acceptor(&certified("other.test")), move |r| sample.answer(r)).await;
    assert!(tls_error(&world, &other).await.contains("install its authority"));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_spoken_only_with_those_who_were_named() {
    let sample = Sample::new(31, &[1000]);
    let server = Scripted::start(move |request| sample.answer(request)).await;
    let world = World::start();
    let error = tls_error(&world, &server).await;
    assert!(error.contains("insecure registry"), "{error}");
    let mut plain = registries();
    plain.allow_plain_http(&format!("0.0.0.0:{}", server.port())).unwrap();
    World::with(plain).pull(&name(&server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leads_out_of_tls() {
    let key = certified("0.0.0.0");
    let mut trusting = registries();
    trusting.trust(key.cert.der().to_vec()).unwrap();
    let world = World::with(trusting);
    let elsewhere = Scripted::start(|_| Reply::new(200, "here is your token")).await;
    for reply in [
        Reply::new(307, "").header("Location", &format!("http://{}/", elsewhere.host())),
        Reply::new(401, "")
            .header("WWW-Authenticate", &format!("Bearer realm=\"http://{}/\"", elsewhere.host())),
    ] {
        let server = Scripted::start_tls(acceptor(&key), move |_| reply.clone()).await;
        let error = world.pull(&name(&server)).await.unwrap_err();
        assert!(matches!(&error, Error::Registry(RegistryError::Nonsense { .. })), "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
        assert!(elsewhere.seen("").is_empty());
    }
}
