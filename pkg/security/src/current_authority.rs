//! The authority of a running manager, which is replaced while it issues certificates.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::CertificateAuthority;

/// The authority that issues certificates now.
pub struct CurrentAuthority(ArcSwap<CertificateAuthority>);

impl CurrentAuthority {
    /// Issues certificates until another one is set.
    pub fn new(authority: CertificateAuthority) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(authority)))
    }

    /// The authority at this moment.
    pub fn load(&self) -> Arc<CertificateAuthority> {
        self.0.load_full()
    }

    /// Issues all certificates from now on.
    pub fn replace(&self, authority: CertificateAuthority) {
        self.0.store(Arc::new(authority));
    }
}

impl fmt::Debug for CurrentAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.load(), f)
    }
}
