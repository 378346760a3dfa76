//! Registries with TLS. Loopback names default to plain HTTP, so the tests use 0.0.0.0, which Linux routes
//! to this machine.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;
use warren_image::{Error, RegistryError};

use crate::scripted::{SampleImage, ScriptedReply, ScriptedServer};
use crate::world::{ImageFixture, registries};

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

fn name(server: &ScriptedServer) -> String {
    format!("0.0.0.0:{}/x:1", server.port())
}

async fn tls_error(world: &ImageFixture, server: &ScriptedServer) -> String {
    let error = world.pull(&name(server)).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Tls { .. })), "{error}");
    assert!(!error.is_transient());
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_trusted_tls_registry_is_used() {
    let key = certified("0.0.0.0");
    let sample = SampleImage::new(30, &[100_000]);
    let honest = sample.clone();
    let server = ScriptedServer::start_tls(acceptor(&key), move |request| honest.answer(request)).await;
    let foreign = ImageFixture::start();
    let error = tls_error(&foreign, &server).await;
    assert!(error.contains("UnknownIssuer") && error.contains("install its CA certificate"), "{error}");
    assert!(server.requests("").is_empty());
    foreign.assert_nothing().await;

    let mut trusting = registries();
    trusting.trust_authority(key.cert.der().to_vec()).unwrap();
    let world = ImageFixture::with(trusting);
    world.pull(&name(&server)).await.unwrap();

    // A certificate for another name is rejected, even with a trusted issuer.
    let other =
        ScriptedServer::start_tls(acceptor(&certified("other.test")), move |r| sample.answer(r)).await;
    assert!(tls_error(&world, &other).await.contains("install its CA certificate"));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_needs_explicit_host() {
    let sample = SampleImage::new(31, &[1000]);
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    let world = ImageFixture::start();
    let error = tls_error(&world, &server).await;
    assert!(error.contains("insecure registry"), "{error}");
    let mut plain = registries();
    plain.allow_plain_http(&format!("0.0.0.0:{}", server.port())).unwrap();
    ImageFixture::with(plain).pull(&name(&server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_never_downgraded() {
    let key = certified("0.0.0.0");
    let mut trusting = registries();
    trusting.trust_authority(key.cert.der().to_vec()).unwrap();
    let world = ImageFixture::with(trusting);
    let elsewhere = ScriptedServer::start(|_| ScriptedReply::new(200, "here is your token")).await;
    for reply in [
        ScriptedReply::new(307, "").header("Location", &format!("http://{}/", elsewhere.host())),
        ScriptedReply::new(401, "")
            .header("WWW-Authenticate", &format!("Bearer realm=\"http://{}/\"", elsewhere.host())),
    ] {
        let server = ScriptedServer::start_tls(acceptor(&key), move |_| reply.clone()).await;
        let error = world.pull(&name(&server)).await.unwrap_err();
        assert!(matches!(&error, Error::Registry(RegistryError::InvalidAnswer { .. })), "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
        assert!(elsewhere.requests("").is_empty());
    }
}
