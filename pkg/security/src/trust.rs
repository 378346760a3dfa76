//! The authorities that a process trusts, which are replaced while it has connections: each handshake uses those of its
//! beginning.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::sync::watch;

use crate::{Identity, Role, Roots};

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

/// The trusted authorities of a process.
pub struct Trust {
    current: ArcSwap<Verifiers>,
    changes: watch::Sender<()>,
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
        Ok(Arc::new(Self { current, changes: watch::Sender::new(()) }))
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
        current.servers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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
        verifier.verify_client_cert(end_entity, intermediates, now)
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
