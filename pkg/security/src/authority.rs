//! The certificate authority of a cluster: created once, issues certificates to identities.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls::crypto::ring;
use rustls_pki_types::CertificateDer;
use warren_types::{MAX_NODE_CERTIFICATE_LIFETIME, MAX_PREDECESSORS, NodeRole};
use x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME;
use zeroize::Zeroizing;

use crate::certificate_bundle::{self, CertificateBundle};
use crate::credentials::BACKDATE;
use crate::identity::{parse_der, parse_part};
use crate::pem;
use crate::roots::ca_digest;
use crate::{
    AuthorityError, CaDigest, CertificateRequest, Credentials, FileError, Identity, MANAGER_NAME,
    MaterialError, PrivateKey, Role, Roots, files,
};

const AUTHORITY_NAME: &str = "warren-ca";
const WEB_SERVER_NAME: &str = "warren-web-server";
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);
/// A new authority is valid from this long before it replaces another one, for machines whose clocks are behind.
const AUTHORITY_BACKDATE: Duration = Duration::from_secs(24 * 60 * 60);
/// 9999-12-31T23:59:59Z, the last time X.509 can express (RFC 5280, 4.1.2.5).
const MAX_NOT_AFTER: Duration = Duration::from_secs(253_402_300_799);

/// The certificate authority with its key, which can impersonate any identity of the cluster.
///
/// One that replaced another has certificates of its key that the earlier ones signed. They are behind each certificate
/// that it issues, so that peers which trust only an earlier authority accept it.
pub struct CertificateAuthority {
    cluster: String,
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    /// The certificates by which earlier authorities vouch for this one, the newest first.
    chain: Vec<CertificateDer<'static>>,
    /// The trusted authorities: this one, then the earlier one while it is trusted as well.
    roots: Roots,
    expires: Duration,
    key: PrivateKey,
    pair: Zeroizing<KeyPair>,
}

impl CertificateAuthority {
    /// A new authority for the cluster with this id, valid for 20 years from `now`.
    pub fn create(cluster: &str, now: SystemTime) -> Result<Self, AuthorityError> {
        let cluster = parse_part("cluster", cluster.to_owned())?;
        let key = PrivateKey::generate()?;
        let params = authority_params(&cluster, AUTHORITY_NAME, since_epoch(now)?)?;
        let certificate = params.self_signed(&*key.pair()?)?;
        Ok(Self::new(&certificate.pem(), key)?)
    }

    /// A new authority that replaces this one: it trusts this one as well, and this one vouches for it.
    ///
    /// # Errors
    /// This one has expired.
    pub fn successor(&self, now: SystemTime) -> Result<Self, AuthorityError> {
        let now = since_epoch(now)?;
        if now >= self.expires {
            return Err(AuthorityError::Expired);
        }
        let key = PrivateKey::generate()?;
        let pair = key.pair()?;
        let mut random = [0u8; 4];
        fill_random(&mut random)?;
        // Each has its own name: programs look for the issuer by its name.
        let name = format!("{AUTHORITY_NAME}-{:08x}", u32::from_be_bytes(random));
        let epoch = date_time_ymd(1970, 1, 1);
        let mut params = authority_params(&self.cluster, &name, now)?;
        params.not_before = epoch + now.saturating_sub(AUTHORITY_BACKDATE);
        let certificate = params.self_signed(&*pair)?;
        params.not_after = params.not_after.min(epoch + self.expires);
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &*self.pair)?;
        let vouched = params.signed_by(&*pair, &issuer)?;
        let mut certificates = certificate.pem();
        certificates += &vouched.pem();
        for earlier in self.chain.iter().take(MAX_PREDECESSORS - 1) {
            certificates += &pem::write_certificate(earlier);
        }
        certificates += &self.certificate_pem;
        Ok(Self::new(&certificates, key)?)
    }

    /// The same authority, which trusts no earlier one. Earlier ones still vouch for it.
    pub fn without_predecessors(&self) -> Self {
        let certificates: Vec<_> = [&self.certificate].into_iter().chain(&self.chain).collect();
        let text: String = certificates.into_iter().map(pem::write_certificate).collect();
        Self::new(&text, self.key.clone()).expect("the certificates were read when the authority was")
    }

    /// Whether it replaced `earlier`, which vouches for it or for one that it replaced.
    pub fn has_replaced(&self, earlier: &Self) -> bool {
        let Ok(earlier) = parse_der(&earlier.certificate) else { return false };
        let is_vouched = |vouched: &CertificateDer<'static>| {
            parse_der(vouched).is_ok_and(|it| it.verify_signature(Some(earlier.public_key())).is_ok())
        };
        self.chain.iter().any(is_vouched)
    }

    /// Whether it trusts an earlier authority as well.
    pub fn trusts_predecessors(&self) -> bool {
        self.roots.certificates().len() > 1
    }

    /// An authority from its certificate and key (both PEM).
    pub fn parse(certificate_pem: &str, key_pem: &str) -> Result<Self, MaterialError> {
        Self::new(certificate_pem, PrivateKey::parse(key_pem)?)
    }

    /// Parses [`CertificateAuthority::to_pem`].
    pub fn parse_pem(text: &str) -> Result<Self, MaterialError> {
        CertificateBundle::parse(text)
            .and_then(|CertificateBundle { certificates, key }| Self::new(&certificates, key))
    }

    /// Certificates and key in one PEM text. Secret: it can impersonate any identity of the cluster.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut certificates = self.certificate_pem.clone();
        let predecessors = self.roots.certificates().iter().skip(1);
        certificates.extend(self.chain.iter().chain(predecessors).map(pem::write_certificate));
        certificate_bundle::join(&certificates, &self.key)
    }

    /// Reads a file written by [`CertificateAuthority::save`].
    pub fn load(path: &Path) -> Result<Self, FileError> {
        let text = files::read_private(path)?;
        Self::parse_pem(&text).map_err(|source| FileError::Material { path: path.to_owned(), source })
    }

    /// What [`CertificateAuthority::roots`] gives for the authority in such a file, also while its key is sealed.
    pub fn load_roots(path: &Path) -> Result<Roots, FileError> {
        let text = files::read_private(path)?;
        let roots = roots_of(&certificate_bundle::certificates(&text));
        roots.map_err(|source| FileError::Material { path: path.to_owned(), source })
    }

    /// Writes certificate and key atomically to one file of mode 0600.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        files::write_private(path, self.to_pem().as_bytes())
    }

    /// Its own certificate is the first one. Of the others, those that sign themselves are trusted as well.
    fn new(certificates: &str, key: PrivateKey) -> Result<Self, MaterialError> {
        let mut found = pem::parse_certificates(certificates)?.into_iter();
        let certificate = found.next().ok_or(MaterialError::Count { wanted: "one certificate", found: 0 })?;
        let (mut chain, mut predecessors) = (Vec::new(), Vec::new());
        for other in found {
            match is_root(&other)? {
                true => predecessors.push(other),
                false => chain.push(other),
            }
        }
        let parsed = parse_der(&certificate)?;
        if !parsed.is_ca() {
            return Err(MaterialError::NotAnAuthority);
        }
        let pair = key.pair()?;
        if parsed.public_key().raw != pair.subject_public_key_info() {
            return Err(MaterialError::KeyMismatch);
        }
        let organization = parsed.subject().iter_by_oid(&OID_X509_ORGANIZATION_NAME).next();
        let cluster = organization.and_then(|value| value.as_str().ok()).unwrap_or_default();
        let cluster = parse_part("cluster", cluster.to_owned())?;
        let expires = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let expires = Duration::from_secs(expires);
        let certificate_pem = pem::write_certificate(&certificate);
        let trusted = predecessors.iter().map(pem::write_certificate);
        let roots = Roots::parse(&[certificate_pem.clone()].into_iter().chain(trusted).collect::<String>())?;
        Ok(Self { cluster, certificate_pem, certificate, chain, roots, expires, key, pair })
    }

    /// The id of its cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Its certificate; not secret.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Its key.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// The trusted roots of the members: this one first.
    pub fn roots(&self) -> Roots {
        self.roots.clone()
    }

    /// Digest of the certificate, which a join token contains.
    pub fn digest(&self) -> CaDigest {
        ca_digest(&self.certificate)
    }

    /// A new key with a certificate, valid from five minutes before `now` for [`Role::validity`], at most as long as
    /// the authority.
    pub fn issue(&self, identity: &Identity, now: SystemTime) -> Result<Credentials, AuthorityError> {
        self.issue_for(identity, PrivateKey::generate()?, now)
    }

    /// As [`CertificateAuthority::issue`], for this key.
    pub fn issue_for(
        &self,
        identity: &Identity,
        key: PrivateKey,
        now: SystemTime,
    ) -> Result<Credentials, AuthorityError> {
        self.issue_lasting(identity, key, now, identity.role().validity())
    }

    /// As [`CertificateAuthority::issue_for`], valid for `lifetime` from `now`, at most as long as the authority.
    pub fn issue_lasting(
        &self,
        identity: &Identity,
        key: PrivateKey,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Credentials, AuthorityError> {
        let certificate = self.certify(identity, &*key.pair()?, now, lifetime)?;
        Ok(Credentials::new(certificate, key)?)
    }

    /// A certificate (PEM) for the requesting machine, with the id derived from its key
    /// ([`CertificateRequest::node_id`]). Other fields of the request are ignored. Repeatable: the same key gets the
    /// same id. Valid for `lifetime` from `now`, at most for [`MAX_NODE_CERTIFICATE_LIFETIME`] and as long as the
    /// authority.
    pub fn sign_node(
        &self,
        role: NodeRole,
        request: &CertificateRequest,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<String, AuthorityError> {
        let role = Role::from(role);
        let identity = Identity::new(self.cluster.as_str(), role, request.node_id().to_string())?;
        self.certify(&identity, request.public_key(), now, lifetime.min(MAX_NODE_CERTIFICATE_LIFETIME))
    }

    /// A certificate (PEM) for the requesting user with this name, valid for `lifetime` from `now`, at most as long as
    /// the authority.
    pub fn sign_user(
        &self,
        name: &str,
        request: &CertificateRequest,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<String, AuthorityError> {
        let identity = Identity::new(self.cluster.as_str(), Role::User, name)?;
        self.certify(&identity, request.public_key(), now, lifetime)
    }

    fn certify(
        &self,
        identity: &Identity,
        public_key: &impl PublicKeyData,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<String, AuthorityError> {
        if identity.cluster() != self.cluster {
            let desired = identity.cluster().to_owned();
            return Err(AuthorityError::OtherCluster { wanted: desired, own: self.cluster.clone() });
        }
        let role = identity.role();
        let mut params = self.leaf_params(now, lifetime)?;
        params.distinguished_name = identity.subject();
        params.extended_key_usages = role.key_usages();
        if role == Role::Manager {
            params.subject_alt_names = vec![SanType::DnsName(MANAGER_NAME.try_into()?)];
        }
        self.sign_params(params, public_key)
    }

    /// A new key and a certificate (PEM) that a manager shows to clients of other software, which verify that it has
    /// the name or address that they use. It proves no identity to members, and lacks the name of managers.
    pub fn issue_web_server(
        &self,
        names: &[String],
        now: SystemTime,
    ) -> Result<(String, PrivateKey), AuthorityError> {
        let mut params = self.leaf_params(now, Role::Manager.validity())?;
        params.distinguished_name.push(DnType::OrganizationName, self.cluster.as_str());
        params.distinguished_name.push(DnType::CommonName, WEB_SERVER_NAME);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names.iter().filter(|name| *name != MANAGER_NAME) {
            let name = match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            };
            if !params.subject_alt_names.contains(&name) {
                params.subject_alt_names.push(name);
            }
        }
        let key = PrivateKey::generate()?;
        let certificate = self.sign_params(params, &*key.pair()?)?;
        Ok((certificate, key))
    }

    /// Parameters of a certificate that is none of an authority.
    fn leaf_params(&self, now: SystemTime, lifetime: Duration) -> Result<CertificateParams, AuthorityError> {
        let now = since_epoch(now)?;
        if now >= self.expires {
            return Err(AuthorityError::Expired);
        }
        let mut params = params(now, lifetime, self.expires)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    fn sign_params(
        &self,
        params: CertificateParams,
        public_key: &impl PublicKeyData,
    ) -> Result<String, AuthorityError> {
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &*self.pair)?;
        let mut certificates = params.signed_by(public_key, &issuer)?.pem();
        certificates.extend(self.chain.iter().map(pem::write_certificate));
        Ok(certificates)
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("cluster", &self.cluster)
            .field("digest", &self.digest())
            .finish_non_exhaustive()
    }
}

/// Common parameters of certificates: a random serial number, an empty subject, and a validity from shortly before
/// `now` for `validity`, but not beyond `end`.
fn params(now: Duration, validity: Duration, end: Duration) -> Result<CertificateParams, AuthorityError> {
    let mut serial = [0u8; 16];
    fill_random(&mut serial)?;
    // A positive number without leading zeros, as DER requires (RFC 5280, 4.1.2.2).
    serial[0] = serial[0] & 0x7f | 0x40;
    let epoch = date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from(serial.to_vec()));
    params.not_before = epoch + now.saturating_sub(BACKDATE);
    params.not_after = epoch + (now + validity).min(end);
    Ok(params)
}

/// The first certificate of an authority, and those that sign themselves.
fn roots_of(certificates: &str) -> Result<Roots, MaterialError> {
    let mut roots = String::new();
    for (position, certificate) in pem::parse_certificates(certificates)?.iter().enumerate() {
        if position == 0 || is_root(certificate)? {
            roots += &pem::write_certificate(certificate);
        }
    }
    Roots::parse(&roots)
}

/// Whether the certificate of an authority is signed by itself.
fn is_root(certificate: &CertificateDer<'_>) -> Result<bool, MaterialError> {
    let parsed = parse_der(certificate)?;
    if !parsed.is_ca() {
        return Err(MaterialError::NotAnAuthority);
    }
    Ok(parsed.subject() == parsed.issuer())
}

/// Parameters of the certificate of an authority with this name.
fn authority_params(cluster: &str, name: &str, now: Duration) -> Result<CertificateParams, AuthorityError> {
    let mut params = params(now, AUTHORITY_VALIDITY, MAX_NOT_AFTER)?;
    params.distinguished_name.push(DnType::OrganizationName, cluster);
    params.distinguished_name.push(DnType::CommonName, name);
    // Without a limit: it may vouch for the authority that replaces it.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn fill_random(bytes: &mut [u8]) -> Result<(), AuthorityError> {
    let random = ring::default_provider().secure_random;
    random.fill(bytes).map_err(|_| AuthorityError::Randomness)
}

fn since_epoch(now: SystemTime) -> Result<Duration, AuthorityError> {
    let since = now.duration_since(UNIX_EPOCH).map_err(|_| AuthorityError::Clock)?;
    Ok(Duration::from_secs(since.as_secs()).min(MAX_NOT_AFTER))
}

#[cfg(test)]
mod tests;
