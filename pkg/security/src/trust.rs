//! The authorities that a process trusts, and whose certificates it refuses all the same. Both are replaced while it
//! has connections: each handshake uses those of its beginning.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::sync::watch;
use tokio::time::Instant;
use warren_types::PublicKeyHash;

use crate::{Identity, Revocations, Role, Roots};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The library refused the settings.
    #[error("TLS could not be set up")]
    Config(#[from] rustls::Error),
    /// The trusted authorities cannot be used to verify clients.
    #[error("the trusted authorities cannot be used")]
    Roots(#[from] VerifierBuilderError),
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The trusted authorities of a process, and what is revoked.
pub struct Trust {
    current: ArcSwap<Verifiers>,
    changes: watch::Sender<()>,
    revoked: ArcSwap<CurrentRevocations>,
}

/// What is revoked, and since when this process knows it.
pub(crate) struct CurrentRevocations {
    revocations: Revocations,
    since: Instant,
}

impl CurrentRevocations {
    fn new(revocations: Revocations) -> Self {
        Self { revocations, since: Instant::now() }
    }

    /// Since when, at least, the certificate is known to be revoked.
    pub(crate) fn revoked_since(&self, identity: &Identity, key: &PublicKeyHash) -> Option<Instant> {
        self.revocations.contain(identity, key).then_some(self.since)
    }
}

struct Verifiers {
    roots: Arc<Roots>,
    retired: Vec<String>,
    servers: Arc<WebPkiServerVerifier>,
    managers: Arc<dyn ClientCertVerifier>,
    others: Arc<dyn ClientCertVerifier>,
}

impl Verifiers {
    fn new(roots: &Roots, retired: &[String]) -> Result<Self, TlsError> {
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.store()), provider());
        let clients =
            |roots: &Roots| WebPkiClientVerifier::builder_with_provider(Arc::new(roots.store()), provider());
        let managers = clients(roots).build()?;
        // What cannot be read is not trusted.
        let others = match Roots::parse(&[roots.pem(), &retired.concat()].concat()) {
            Ok(all) if !retired.is_empty() => clients(&all).build()?,
            _ => Arc::clone(&managers),
        };
        let (roots, retired) = (Arc::new(roots.clone()), retired.to_vec());
        Ok(Self { roots, retired, servers: servers.build()?, managers, others })
    }
}

impl Trust {
    /// Trusts these until others are set.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn new(roots: &Roots) -> Result<Arc<Self>, TlsError> {
        let current = ArcSwap::from_pointee(Verifiers::new(roots, &[])?);
        let revoked = ArcSwap::from_pointee(CurrentRevocations::new(Revocations::default()));
        Ok(Arc::new(Self { current, changes: watch::Sender::new(()), revoked }))
    }

    /// Trusts others in all handshakes that begin from now on. Of clients that are no managers, certificates of the
    /// `retired` authorities (PEM) are accepted as well: it is the key of these that counts.
    ///
    /// # Errors
    /// They cannot be used; those from before stay.
    pub fn replace(&self, roots: &Roots, retired: &[String]) -> Result<(), TlsError> {
        let before = self.current.load_full();
        let is_same = before.roots.digests() == roots.digests();
        if is_same && before.retired == retired {
            return Ok(());
        }
        self.current.store(Arc::new(Verifiers::new(roots, retired)?));
        if !is_same {
            self.changes.send_replace(());
        }
        Ok(())
    }

    /// Refuses these certificates in all handshakes that begin from now on, and no others. Servers also close the
    /// connections that show them.
    pub fn revoke(&self, revocations: Revocations) {
        if self.revoked.load().revocations != revocations {
            self.revoked.store(Arc::new(CurrentRevocations::new(revocations)));
        }
    }

    /// What is revoked now.
    pub(crate) fn revoked(&self) -> arc_swap::Guard<Arc<CurrentRevocations>> {
        self.revoked.load()
    }

    /// Refuses a verified certificate that is revoked. One without an identity is refused after the handshake.
    fn check_revoked(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match Identity::with_key_from_der(certificate) {
            Ok((identity, key)) if self.revoked().revoked_since(&identity, &key).is_some() => {
                Err(rustls::Error::InvalidCertificate(CertificateError::Revoked))
            }
            _ => Ok(()),
        }
    }

    /// The trusted authorities.
    pub fn roots(&self) -> Arc<Roots> {
        Arc::clone(&self.current.load().roots)
    }

    /// Notified when the trusted authorities are others.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({:?})", self.current.load().roots.digests())
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let current = self.current.load();
        let verified =
            current.servers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.check_revoked(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().servers.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().servers.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().servers.supported_verify_schemes()
    }
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    trust: Arc<Trust>,
    kind: ClientKind,
}

/// Whose connections a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// Managers, nodes and users, and those without a certificate.
    Any,
    /// Clients of other software: they must have a certificate of an authority that is trusted now.
    OtherSoftware,
}

impl ClientVerifier {
    pub(crate) fn new(trust: Arc<Trust>, kind: ClientKind) -> Arc<Self> {
        Arc::new(Self { trust, kind })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.kind == ClientKind::OtherSoftware
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Clients have one certificate, and show it.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let current = self.trust.current.load();
        let is_manager = Identity::from_der(end_entity).is_ok_and(|found| found.role() == Role::Manager);
        let verifier = match self.kind {
            ClientKind::Any if !is_manager => &current.others,
            ClientKind::Any | ClientKind::OtherSoftware => &current.managers,
        };
        let verified = verifier.verify_client_cert(end_entity, intermediates, now)?;
        self.trust.check_revoked(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.current.load().managers.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.current.load().managers.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.current.load().managers.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
