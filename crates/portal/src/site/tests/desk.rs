//! Forms of the help desk that are not followed: what a person has typed is there again.

use super::*;
use crate::pages::gallery;
use vpnd_ipc::gateway::portal::desk::{DeskRefusal, Made};

/// Asks for another login for a reason that begins with "late", and for a reason where none is.
async fn answer_at_the_desk(channel: Channel) {
    while let Ok(Some(received)) = channel.receive::<Numbered<PortalRequest>>().await {
        let Numbered { number, content } = received.alone().unwrap();
        let of_reason = |reason: &str| match reason {
            "" => Err(DeskRefusal::NoReason),
            late if late.starts_with("late") => Err(DeskRefusal::LogInAgain),
            _ => Ok(None::<Made>),
        };
        let content = match content {
            PortalRequest::Turn(_) => encoded(&Ok(STORE)),
            PortalRequest::LogIn(_) => encoded(&Ok(LoginStep::LoggedIn(Token([9; 32].into())))),
            PortalRequest::LogOut(_) => encoded(&Ok(())),
            PortalRequest::ChangeUser(change) => encoded(&Ok(of_reason(&change.reason))),
            PortalRequest::Whois(_) => encoded(&Ok(Err::<(), _>(DeskRefusal::NoReason))),
            PortalRequest::FindUsers(_) => encoded(&Ok(Err::<(), _>(DeskRefusal::NoReason))),
            PortalRequest::ShowUser(show) if &*show.user == "gus" => {
                encoded(&Ok(Ok::<_, DeskRefusal>(gallery::shown(None))))
            }
            PortalRequest::ShowUser(_) => encoded(&Ok(Err::<(), _>(DeskRefusal::NotThere))),
            PortalRequest::Desk(_) => encoded(&Ok(Ok::<_, DeskRefusal>(gallery::state()))),
            _ => encoded::<()>(&Err(Reason::cut("a test"))),
        };
        channel.send(&Numbered { number, content }, &[]).await.unwrap();
    }
}

fn site_with_desk() -> Router {
    let (ours, theirs) = channel::pair().unwrap();
    let (auth, replies) = AuthClient::start(Channel::new(ours, MAX_FRAME).unwrap());
    tokio::spawn(replies);
    tokio::spawn(answer_at_the_desk(Channel::new(theirs, MAX_FRAME).unwrap()));
    router(Arc::new(Site::new(auth, "VPN".to_owned(), None, Vec::new())))
}

/// A browser with the cookies that it was given.
struct Browser {
    site: Router,
    cookies: std::collections::BTreeMap<String, String>,
}

impl Browser {
    fn new() -> Self {
        let cookies = [("__Host-vpnd".to_owned(), hex(&TOKEN))].into();
        Self { site: site_with_desk(), cookies }
    }

    /// The status of an answer, the address to which it leads, and its page.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
    ) -> (StatusCode, String, String) {
        let token = Token(unhex::<32>(&self.cookies["__Host-vpnd"]).unwrap().into());
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.append_pair("form", &form_of(&token)).extend_pairs(fields);
        let cookies = self.cookies.iter().map(|(name, value)| format!("{name}={value}"));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(COOKIE, cookies.collect::<Vec<_>>().join("; "))
            .body(Body::from(body.finish()))
            .unwrap();
        request.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
        let response = self.site.call(request).await.unwrap();
        for set in response.headers().get_all(SET_COOKIE) {
            let set = set.to_str().unwrap();
            let (name, value) = set.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
            if set.contains("Max-Age=0") {
                self.cookies.remove(name);
            }
        }
        let place = response.headers().get(LOCATION).map(|place| place.to_str().unwrap().to_owned());
        let status = response.status();
        let page = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, place.unwrap_or_default(), String::from_utf8(page.to_vec()).unwrap())
    }

    async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, String, String) {
        self.send(Method::POST, path, fields).await
    }

    async fn get(&mut self, path: &str) -> (StatusCode, String, String) {
        self.send(Method::GET, path, &[]).await
    }

    /// The address to which a login leads.
    async fn log_in(&mut self) -> String {
        self.post("/login", &[("user", "dora"), ("password", "x")]).await.1
    }
}

/// Whether a page has the form of this address unfolded, with these texts.
fn is_open(page: &str, action: &str, values: &[&str]) -> bool {
    let has_all = |part: &str| values.iter().all(|value| part.contains(&format!("value=\"{value}\"")));
    let mut open = page.split("<details open>").skip(1).map(|rest| rest.split("</details>").next().unwrap());
    open.any(|part| part.contains(&format!("action=\"{action}\"")) && has_all(part))
}

#[tokio::test]
async fn a_login_that_a_change_takes_leads_back_to_its_form() {
    let texts = &crate::texts::ENGLISH.desk;
    let device = hex(&[1; 16]);
    for (path, mut fields) in [
        ("/desk/disable", vec![("user", "gus"), ("reason", "late: \"4711\" & more")]),
        ("/desk/kick", vec![("user", "gus"), ("reason", "late"), ("device", &device)]),
        ("/desk/extend", vec![("user", "gus"), ("reason", "late"), ("until", "2030-01-31")]),
        ("/desk/add", vec![("user", "eva"), ("reason", "late"), ("groups", "physics"), ("note", "room")]),
    ] {
        let mut browser = Browser::new();
        let (status, _, page) = browser.post(path, &fields).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert!(page.contains("action=\"/login\"") && page.contains("last ten minutes"), "{path}: {page}");
        assert_eq!(browser.log_in().await, "/desk/again", "{path}");
        let (status, _, page) = browser.get("/desk/again").await;
        assert!(status == StatusCode::OK && page.contains(texts.not_yet), "{path}: {page}");
        fields[1].1 = fields[1].1.split(':').next().unwrap();
        let values: Vec<&str> = fields.iter().map(|(_, value)| *value).collect();
        let shown = page.replace("late: &#34;4711&#34; &#38; more", "late");
        assert!(is_open(&shown, path, &values), "{path}: {page}");
        assert_eq!(page.matches("<details open>").count(), 1, "{path}: that one alone");
        // Once: what comes after is as ever.
        assert_eq!(browser.get("/desk/again").await.1, "/desk", "{path}");
        assert_eq!(browser.log_in().await, "/", "{path}");
    }
    // A logout leaves nothing behind.
    let mut browser = Browser::new();
    browser.post("/desk/disable", &[("user", "gus"), ("reason", "late")]).await;
    assert_eq!(browser.cookies.len(), 2);
    browser.post("/logout", &[]).await;
    assert!(browser.cookies.is_empty(), "{:?}", browser.cookies);
}

#[tokio::test]
async fn a_cookie_leads_to_pages_of_the_desk_alone() {
    for forged in [
        r#"{"deed":"//evil.example/","typed":{"user":"gus"}}"#,
        r#"{"deed":"disable","typed":{"user":"//evil.example/"}}"#,
        r#"{"deed":"disable","typed":{"user":"gus","reason":"\"><script>"}}"#,
        "//evil.example/",
    ] {
        use base64::Engine as _;
        let value = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(forged);
        let mut browser = Browser::new();
        browser.cookies.insert("__Host-vpnd-desk".to_owned(), value);
        let place = browser.log_in().await;
        assert!(["/", "/desk/again"].contains(&place.as_str()), "{forged}: {place}");
        let (_, place, page) = browser.get("/desk/again").await;
        assert!(["", "/desk"].contains(&place.as_str()), "{forged}: {place}");
        assert!(!page.contains("evil.example") && !page.contains("<script>"), "{forged}: {page}");
    }
}

#[tokio::test]
async fn a_form_without_a_reason_is_there_again() {
    let problem = (crate::texts::ENGLISH.desk.why_not)(DeskRefusal::NoReason);
    let mut browser = Browser::new();
    let long = "x".repeat(600);
    for reason in ["", long.as_str()] {
        let fields = [("user", "gus"), ("reason", reason), ("until", "2030-01-31")];
        let (status, _, page) = browser.post("/desk/extend", &fields).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(page.contains(problem) && page.contains("<h1>gus</h1>"), "{page}");
        assert!(is_open(&page, "/desk/extend", &["2030-01-31", reason]), "{page}");
    }
    let (status, _, page) =
        browser.post("/desk/whois", &[("address", "10.86.0.7"), ("at", "2027-01-31T12:00:00Z")]).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [problem, "action=\"/desk/whois\"", "value=\"10.86.0.7\"", "value=\"2027-01-31T12:00:00Z\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (status, _, page) = browser.get("/desk/users?text=10.86.0.7").await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.contains(problem) && page.contains("value=\"10.86.0.7\""), "{page}");
    assert!(!page.contains(crate::texts::ENGLISH.desk.none_found), "nobody was looked for: {page}");
    // A user who is gone has no page.
    let (status, _, page) = browser.post("/desk/disable", &[("user", "nobody"), ("reason", "")]).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && page.contains(problem), "{page}");
    let (status, place, _) = browser.post("/desk/disable", &[("user", "gus"), ("reason", "call")]).await;
    assert_eq!((status, place.as_str()), (StatusCode::SEE_OTHER, "/desk/user?name=gus&done=1"));
}
