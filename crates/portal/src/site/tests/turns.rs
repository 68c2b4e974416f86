//! Turns of logins, with an auth process that never answers about the users of one source.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use vpnd_ipc::gateway::portal::turns::{LOGINS_AT_ONCE, SourceNumber};

const SILENT: SourceNumber = 1;
/// Longer than a login waits for its turn.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Counts what is not answered.
async fn answer_ann_alone(channel: Channel, held: Arc<AtomicUsize>) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        let content = match content {
            PortalRequest::Turn(TurnQuery::User(user)) if &*user == "ann" => encoded(&Ok(STORE)),
            PortalRequest::Turn(_) => encoded(&Ok(SILENT)),
            PortalRequest::LogIn(login) if &*login.user == "ann" => {
                encoded(&Ok(LoginStep::Refused(Refusal::Credentials.into())))
            }
            _ => {
                held.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_source_that_is_silent_keeps_no_other_users_login_waiting() {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    let held = Arc::new(AtomicUsize::new(0));
    tokio::spawn(answer_ann_alone(Channel::new(theirs, MAX_FRAME).unwrap(), Arc::clone(&held)));
    let site = router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())));
    for number in 0..LOGINS_AT_ONCE {
        // A login, the answer to a challenge, and a browser that is back from a provider.
        let (method, path) = [
            (Method::POST, "/login"),
            (Method::POST, "/login/answer"),
            (Method::GET, "/oidc/callback/x?state=a&code=b"),
        ][number % 3]
            .clone();
        let mut login = request(method, path, true);
        let form = form_of(&Token(TOKEN.into()));
        *login.body_mut() = Body::from(format!("form={form}&user=bob%40uni.example&password=x&answer=x"));
        let cookie = format!("__Host-vpnd-provider={}", hex(&TOKEN)).parse().unwrap();
        login.headers_mut().append(COOKIE, cookie);
        login.extensions_mut().insert(Peer([192, 0, 2, (number / 4) as u8].into()));
        let mut site = site.clone();
        tokio::spawn(async move { site.call(login).await.map(drop) });
    }
    let all_wait = async {
        while held.load(Ordering::Relaxed) < LOGINS_AT_ONCE {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, all_wait).await.expect("each has its turn");
    let mut login = request(Method::POST, "/login", true);
    // From the host of some of them.
    login.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
    let answer = tokio::time::timeout(TIMEOUT, site.clone().call(login)).await;
    assert_eq!(answer.expect("it waits for nothing").unwrap().status(), StatusCode::FORBIDDEN);
}
