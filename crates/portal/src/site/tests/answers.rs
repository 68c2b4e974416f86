//! Answers to devices that come too often.

use super::*;

async fn answer_with_a_wait(channel: Channel) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        let content = match content {
            PortalRequest::AnswerToClient(_) => encoded(&Ok(ConnectEnd::Wait(20))),
            _ => encoded::<()>(&Err(Reason::cut("a test"))),
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_person_who_answers_too_often_is_told_to_wait() {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    tokio::spawn(answer_with_a_wait(Channel::new(theirs, MAX_FRAME).unwrap()));
    let mut site = router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())));
    let response = site.call(request(Method::POST, "/connect", true)).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(only(&response, &RETRY_AFTER, "/connect"), "20");
    let page = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = crate::texts::ENGLISH.refused(Refusal::Throttled.retry_after_s(Some(20)));
    assert!(String::from_utf8_lossy(&page).contains(&text));
}
