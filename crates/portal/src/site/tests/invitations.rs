//! Pages of an invitation.

use super::*;
use vpnd_ipc::gateway::portal::invitations::InvitationStep;

/// Takes the invitation of every address with "good" in it, and no other.
async fn answer_invited(channel: Channel) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        let content = match content {
            PortalRequest::Turn(_) => encoded(&Ok(STORE)),
            PortalRequest::AcceptInvitation(accept) if accept.invitation.expose().contains("good") => {
                encoded(&Ok(InvitationStep::Done))
            }
            _ => encoded(&Ok(InvitationStep::Over)),
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn no_logout_is_offered_without_a_login() {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    tokio::spawn(answer_invited(Channel::new(theirs, MAX_FRAME).unwrap()));
    let mut site = router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())));
    let texts = &crate::texts::ENGLISH;
    for (method, path, said) in [
        (Method::POST, "/invitation/good", texts.invitation_done),
        (Method::POST, "/invitation/used", texts.invitation_over),
        (Method::GET, "/invitation/used", texts.invitation_over),
    ] {
        // With the cookie that its form has set.
        let response = site.call(request(method.clone(), path, true)).await.unwrap();
        let page = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let page = String::from_utf8_lossy(&page);
        assert!(page.contains(&format!("<h1>{said}</h1>")), "{method} {path}: {page}");
        assert!(!page.contains("/logout") && !page.contains(texts.log_out), "{method} {path}: {page}");
    }
}
