//! Errors in Docker's form: a status and `{"message": "..."}`.

use std::fmt::Display;

use hyper::StatusCode;
use tonic::Code;
use warren_client::Error;
use warren_types::Violations;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerError {
    pub status: StatusCode,
    /// Human-readable.
    pub message: String,
}

impl DockerError {
    pub fn new(status: StatusCode, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }

    /// 400.
    pub fn invalid(message: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404.
    pub fn not_found(message: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 501.
    pub fn unsupported(message: impl Display) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }
}

impl From<Violations> for DockerError {
    fn from(violations: Violations) -> Self {
        Self::invalid(violations)
    }
}

impl From<Error> for DockerError {
    fn from(error: Error) -> Self {
        let Error::Refused { problem } = &error else {
            let status = match error {
                Error::Denied { .. } => StatusCode::FORBIDDEN,
                Error::Input(_) => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            return Self::new(status, error);
        };
        let status = match problem.code {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
            Code::PermissionDenied | Code::Unauthenticated => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        match problem.violations.0.as_slice() {
            [] => Self::new(status, problem),
            _ => Self::new(status, &problem.violations),
        }
    }
}
