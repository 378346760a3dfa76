use std::net::SocketAddr;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    CertificateAuthority, Credentials, JoinToken, ReloadableCertificate, client_config, pem, server_config,
};

const SOON: Duration = Duration::from_secs(60);
const TWO_YEARS: Duration = Duration::from_secs(2 * 365 * 24 * 60 * 60);

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1x", SystemTime::now() - TWO_YEARS).unwrap()
}

fn issue_at(authority: &CertificateAuthority, role: Role, now: SystemTime) -> Credentials {
    authority.issue(&Identity::new("c1x", role, "n1").unwrap(), now).unwrap()
}

fn issue(authority: &CertificateAuthority, role: Role) -> Credentials {
    issue_at(authority, role, SystemTime::now())
}

fn config_of(authority: &CertificateAuthority, shown: &Credentials) -> Arc<ServerConfig> {
    server_config(&authority.roots(), ReloadableCertificate::new(shown)).unwrap().config
}

/// A server that shows this chain, with this key, whatever belongs to it.
fn impostor_config(chain: Vec<CertificateDer<'static>>, key: &Credentials) -> Arc<ServerConfig> {
    let shown = CertifiedKey::new(chain, Arc::clone(&key.certified().key));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    Arc::new(config)
}

fn leaf_and_authority(leaf: &Credentials, authority: &CertificateAuthority) -> Vec<CertificateDer<'static>> {
    let mut chain = leaf.certified().cert.clone();
    chain.extend(pem::parse_certificates(authority.certificate_pem()).unwrap());
    chain
}

/// Takes one connection and gives what it heard on it after the handshake.
async fn serve_one(config: Arc<ServerConfig>) -> (SocketAddr, JoinHandle<std::io::Result<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await?;
        Ok(heard)
    });
    (address, heard)
}

async fn join(
    address: SocketAddr,
    authority: CaDigest,
) -> Result<(TlsStream<TcpStream>, Roots), JoinConnectError> {
    connect_to_join(TcpStream::connect(address).await.unwrap(), authority, SOON).await
}

/// Why the server was refused, having heard nothing.
async fn refusal(config: Arc<ServerConfig>, expected: CaDigest) -> JoinConnectError {
    let (address, heard) = serve_one(config).await;
    let refused = join(address, expected).await.expect_err("it is not a manager of the token's cluster");
    let heard = tokio::time::timeout(SOON, heard).await.unwrap().unwrap();
    assert!(heard.is_err(), "the server's side of the handshake must fail too, found {heard:?}");
    refused
}

#[tokio::test]
async fn token_authenticates_the_manager() {
    let authority = authority();
    let manager = issue(&authority, Role::Manager);
    let token = JoinToken::parse(&JoinToken::generate(authority.digest()).unwrap().reveal()).unwrap();
    for _ in 0..2 {
        let (address, heard) = serve_one(config_of(&authority, &manager)).await;
        let (mut stream, roots) = join(address, token.authority()).await.unwrap();
        stream.write_all(token.reveal().as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let heard = tokio::time::timeout(SOON, heard).await.unwrap().unwrap().unwrap();
        assert_eq!(heard, token.reveal().as_bytes());
        assert_eq!(roots.digests(), [authority.digest()]);
        // What is stored is what a member connects with from then on.
        let (address, _heard) = serve_one(config_of(&authority, &manager)).await;
        let config = client_config(&Roots::parse(roots.pem()).unwrap(), None).unwrap();
        connect(TcpStream::connect(address).await.unwrap(), config, SOON).await.unwrap();
    }
}

#[tokio::test]
async fn one_of_two_authorities_is_found_by_its_digest() {
    let (old, new) = (authority(), authority());
    let both = Roots::parse(&format!("{}{}", old.certificate_pem(), new.certificate_pem())).unwrap();
    let shown = ReloadableCertificate::new(&issue(&new, Role::Manager));
    let (address, _heard) = serve_one(server_config(&both, shown).unwrap().config).await;
    let (_, roots) = join(address, new.digest()).await.unwrap();
    assert_eq!(roots.digests(), [new.digest()]);
}

#[tokio::test]
async fn other_cluster_gets_no_token_and_is_named() {
    let (ours, theirs) = (authority(), authority());
    let refused = refusal(config_of(&theirs, &issue(&theirs, Role::Manager)), ours.digest()).await;
    let text = refused.to_string();
    assert!(text.contains("another cluster's manager"), "{text}");
    assert!(text.contains(&ours.digest().to_string()) && text.contains(&theirs.digest().to_string()));
    assert!(matches!(
        refused,
        JoinConnectError::AnotherCluster { wanted, found } if wanted == ours.digest() && found == Some(theirs.digest())
    ));
    // Somebody who shows nothing but itself.
    let alone = issue(&theirs, Role::Manager);
    let refused = refusal(impostor_config(alone.certified().cert.clone(), &alone), ours.digest()).await;
    assert!(matches!(refused, JoinConnectError::AnotherCluster { found: None, .. }), "{refused}");
}

#[tokio::test]
async fn right_authority_with_wrong_leaf_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let attacker = issue(&theirs, Role::Manager);
    let refused =
        refusal(impostor_config(leaf_and_authority(&attacker, &ours), &attacker), ours.digest()).await;
    assert!(matches!(refused, JoinConnectError::NotAManager(_)), "{refused}");
    // Nor is showing all of what a manager shows without having its key.
    let manager = issue(&ours, Role::Manager);
    let refused =
        refusal(impostor_config(leaf_and_authority(&manager, &ours), &attacker), ours.digest()).await;
    assert!(matches!(refused, JoinConnectError::NotAManager(_)), "{refused}");
    // Nor is being the authority's own certificate, which everybody has.
    let authority_twice =
        [leaf_and_authority(&manager, &ours)[1].clone(), leaf_and_authority(&manager, &ours)[1].clone()];
    let refused = refusal(impostor_config(authority_twice.to_vec(), &attacker), ours.digest()).await;
    assert!(matches!(refused, JoinConnectError::NotAManager(_)), "{refused}");
}

#[tokio::test]
async fn non_manager_certificate_is_refused() {
    let authority = authority();
    for role in [Role::Worker, Role::User] {
        let refused = refusal(config_of(&authority, &issue(&authority, role)), authority.digest()).await;
        assert!(matches!(refused, JoinConnectError::NotAManager(_)), "{role}: {refused}");
    }
}

#[tokio::test]
async fn expired_or_future_certificate_is_refused() {
    let authority = authority();
    let now = SystemTime::now();
    for at in [now - TWO_YEARS, now + TWO_YEARS] {
        let manager = issue_at(&authority, Role::Manager, at);
        let refused = refusal(config_of(&authority, &manager), authority.digest()).await;
        assert!(matches!(refused, JoinConnectError::Expired(_)), "{refused}");
        assert!(refused.to_string().contains("set the clocks"), "{refused}");
    }
}

#[tokio::test]
async fn non_tls_server_fails_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let digest = authority().digest();
    let talk = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    };
    let (refused, _stream) = tokio::join!(join(address, digest), talk);
    assert!(matches!(refused, Err(JoinConnectError::Connect(ConnectError::Handshake(_)))), "{refused:?}");
    let silent = TcpStream::connect(address).await.unwrap();
    let refused = connect_to_join(silent, digest, Duration::from_millis(50)).await;
    assert!(matches!(refused, Err(JoinConnectError::Connect(ConnectError::TimedOut(_)))), "{refused:?}");
}
