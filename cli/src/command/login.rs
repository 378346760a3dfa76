//! `warren login`: makes a key on this machine, has a manager list and certify it, and writes a context.

use std::io::Read;
use std::path::Path;

use warren_client::{ClientContext, ClientIdentity, ClientTarget, Contexts, JoinToken, PrivateKeyPem};
use warren_daemon::join;
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::users_client::UsersClient;
use warren_security::{CertificateRequest, PrivateKey};
use warren_types::ManagerAddress;
use zeroize::Zeroizing;

use crate::args::{GlobalArgs, LoginArgs};
use crate::connect::contexts_file;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::input;
use crate::output;

const NOT_LOGGED_IN: &str = "not logged in";
/// Longer than every token.
const MAX_TOKEN_FILE: u64 = 4096;

pub async fn run(_global: &GlobalArgs, args: LoginArgs) -> Result<(), CommandError> {
    let LoginArgs { manager, token_file, context_name } = args;
    let file = contexts_file(NOT_LOGGED_IN)?;
    let text = read_token(token_file.as_deref())?;
    let hint = "an administrator makes one with `warren user token NAME`";
    let token = JoinToken::parse(&text)
        .map_err(|error| CommandError::new(ExitKind::Usage, NOT_LOGGED_IN, error, hint))?;
    let failed = |error: &dyn std::fmt::Display| {
        CommandError::new(ExitKind::Failed, NOT_LOGGED_IN, error.to_string(), "try again")
    };
    let key = PrivateKey::generate().map_err(|error| failed(&error))?;
    let request = CertificateRequest::create(&key).map_err(|error| failed(&error))?;
    let address = manager.to_string();
    let (channel, roots) = join::connect(&address, &token).await.map_err(not_logged_in)?;
    let message = v1::LoginRequest { token: token.reveal().to_string(), certificate_request: request };
    let mut client = UsersClient::new(channel);
    let answer = join::await_answer(&address, client.login(message)).await.map_err(not_logged_in)?;
    let answer = answer.map_err(|status| {
        let problem = Problem::from(&status);
        if problem.reason.starts_with("LOGIN_TOKEN_") {
            return CommandError::new(ExitKind::Denied, NOT_LOGGED_IN, problem.message, "");
        }
        from_client(NOT_LOGGED_IN, warren_client::Error::Refused { problem })
    })?;
    let v1::LoginResponse { cluster_id, name, role, certificate, managers } = answer.into_inner();
    let others = managers.iter().filter_map(|text| text.parse::<ManagerAddress>().ok());
    let mut addresses = vec![manager.clone()];
    addresses.extend(others.filter(|other| *other != manager));
    let identity =
        ClientIdentity { ca: roots.pem().to_owned(), certificate, key: PrivateKeyPem(key.pem().to_owned()) };
    let target = ClientTarget::Tcp { addresses, identity };
    let known = Contexts::load(&file).map_err(|error| from_client(NOT_LOGGED_IN, error))?;
    let context_name = context_name.unwrap_or_else(|| match known.get("default") {
        None => "default".to_owned(),
        Some(_) => format!("{name}-{}", cluster_id.chars().take(8).collect::<String>()),
    });
    let context = ClientContext { name: context_name.clone(), target, incarnation: 0 };
    Contexts::upsert(&file, context).map_err(|error| from_client(NOT_LOGGED_IN, error))?;
    let role = warren_proto::convert::user_role(role).map_or("user", |role| role.as_str());
    output::print(&format!("logged in as {role} {name}; context {context_name:?} is the current one\n"))
}

/// `warren login` and joining connect in the same way.
fn not_logged_in(failure: warren_daemon::CommandError) -> CommandError {
    CommandError { what: NOT_LOGGED_IN.to_owned(), ..failure }
}

fn read_token(file: Option<&Path>) -> Result<Zeroizing<String>, CommandError> {
    let unreadable = |path: &Path, error: std::io::Error| {
        let why = format!("{}: {error}", path.display());
        CommandError::new(
            ExitKind::Usage,
            NOT_LOGGED_IN,
            why,
            "give a file with the token, or - for standard input",
        )
    };
    let Some(path) = file else { return input::read_password(true, "Login token: ", NOT_LOGGED_IN) };
    let mut text = Zeroizing::new(String::with_capacity(MAX_TOKEN_FILE as usize));
    let read = match path.to_str() {
        Some("-") => std::io::stdin().take(MAX_TOKEN_FILE).read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|file| file.take(MAX_TOKEN_FILE).read_to_string(&mut text)),
    };
    read.map_err(|error| unreadable(path, error))?;
    Ok(text)
}
