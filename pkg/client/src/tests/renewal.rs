//! The certificate of a client: when it is renewed, and what is said if it cannot be.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::AsyncReadExt;
use warren_security::{
    CertificateAuthority, Credentials, PrivateKey, ReloadableCertificate, Role, client_config,
    without_certificate,
};

use super::closed_port;
use super::scripted_server::{FakeScript, ScriptedApiServer, admin, admin_since, authority};
use crate::client_tls::{ClientTls, dial_to_renew};
use crate::contexts::{ClientIdentity, ClientTarget};
use crate::{CertificateOptions, Client, Error};

const HOUR: Duration = Duration::from_secs(3600);

/// A manager that lists the key of the client, if it has the `authority`.
fn manager(authority: Option<&CertificateAuthority>) -> ScriptedApiServer {
    let copied = |authority: &CertificateAuthority| {
        Arc::new(CertificateAuthority::parse_pem(&authority.to_pem()).unwrap())
    };
    ScriptedApiServer::new(FakeScript { authority: authority.map(copied), ..FakeScript::default() })
}

fn tcp(addresses: &[&str], identity: &ClientIdentity) -> ClientTarget {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    ClientTarget::Tcp { addresses, identity: identity.clone() }
}

fn issued_ago(ours: &CertificateAuthority, hours: u32) -> ClientIdentity {
    admin_since(ours, ours, SystemTime::now() - hours * HOUR)
}

fn credentials(identity: &ClientIdentity) -> Credentials {
    let key = PrivateKey::parse(&identity.key.0).unwrap();
    Credentials::new(identity.certificate.clone(), key).unwrap()
}

#[tokio::test]
async fn certificate_is_renewed_when_half_of_its_lifetime_is_past() {
    let ours = authority();
    let rows: [(u32, &[&str]); 5] = [
        (0, &["web"]),
        (11, &["web"]),
        // As any other call, by the limits of the user.
        (13, &["renew", "web"]),
        (25, &["renew without certificate", "web"]),
        (2400, &["renew without certificate", "web"]),
    ];
    for (hours, expected) in rows {
        let manager = manager(Some(&ours));
        let (address, _serving) = manager.serve_port(&ours, Role::Manager);
        let identity = issued_ago(&ours, hours);
        let client = Client::connect(&tcp(&[&address], &identity)).await.unwrap();
        client.services().get("web").await.unwrap();
        assert_eq!(manager.requests(), expected, "{hours} hours");
        let shown = client.identity().unwrap();
        let is_renewed = (shown != identity, &shown.key);
        assert_eq!(is_renewed, (expected.len() == 2, &identity.key), "{hours} hours");
        assert!(!credentials(&shown).is_past_half(SystemTime::now()), "{hours} hours");
        assert_eq!(client.clock_difference(), None);
    }
}

#[tokio::test]
async fn certificate_that_expires_in_the_middle_of_use_is_renewed_with_the_next_connection() {
    let ours = authority();
    let manager = manager(Some(&ours));
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    let tls = ClientTls::new(&admin(&ours, &ours)).unwrap();
    tls.connect(&address).await.unwrap();
    assert_eq!(manager.requests(), [""; 0]);
    tls.show(credentials(&issued_ago(&ours, 25)));
    tls.connect(&address).await.unwrap();
    assert_eq!(manager.requests(), ["renew without certificate"]);
    tls.connect(&address).await.unwrap();
    assert_eq!(manager.requests().len(), 1, "the new one is good for twelve hours");
}

#[tokio::test]
async fn certificate_that_a_manager_refuses_as_expired_is_renewed_without_it() {
    let ours = authority();
    let manager = manager(Some(&ours));
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    // By a clock that is behind that of the manager, it is valid.
    let expired = ReloadableCertificate::new(&credentials(&issued_ago(&ours, 25)));
    let shown = client_config(&ours.roots(), Some(expired)).unwrap();
    let anonymous = without_certificate(&shown);
    let mut stream = dial_to_renew(&address, Some(shown), anonymous).await.unwrap();
    stream.read_u8().await.expect("a manager that accepts a connection says something first");
}

#[tokio::test]
async fn expired_certificate_without_a_listed_key_is_denied() {
    let ours = authority();
    let manager = manager(None);
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    let error = Client::connect(&tcp(&[&address], &issued_ago(&ours, 25))).await.unwrap_err();
    assert!(matches!(&error, Error::Denied { .. }), "{error:?}");
    let expected = "the certificate of the context has expired, and was not renewed: the key is not listed";
    assert!(error.to_string().ends_with(expected), "{error}");
    // One that is valid is shown, and the call says what is wrong.
    let client = Client::connect(&tcp(&[&address], &issued_ago(&ours, 13))).await.unwrap();
    client.services().get("web").await.unwrap();
    assert_eq!(manager.requests(), ["renew without certificate", "renew", "web"]);
}

#[tokio::test]
async fn another_manager_renews_what_the_first_cannot() {
    let ours = authority();
    let (manager, (gone, _held)) = (manager(Some(&ours)), closed_port());
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    let client = Client::connect(&tcp(&[&gone, &address], &issued_ago(&ours, 25))).await.unwrap();
    client.services().get("web").await.unwrap();
    assert_eq!(manager.requests(), ["renew without certificate", "web"]);
}

#[tokio::test]
async fn issued_certificate_is_not_shown() {
    let ours = authority();
    let manager = manager(Some(&ours));
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    let identity = admin(&ours, &ours);
    let client = Client::connect(&tcp(&[&address], &identity)).await.unwrap();
    let issued = client.issue_certificate(CertificateOptions::default()).await.unwrap();
    assert_ne!(issued.certificate, identity.certificate);
    assert_eq!((&issued.ca, &issued.key), (&identity.ca, &identity.key));
    assert_eq!(client.identity().unwrap(), identity);
    // A manager of another authority issues nothing that this client trusts.
    let another = authority();
    manager.0.lock().unwrap().authority = Some(Arc::new(another));
    let error = client.issue_certificate(CertificateOptions::default()).await.unwrap_err();
    assert!(matches!(&error, Error::Identity { .. }), "{error:?}");
}
