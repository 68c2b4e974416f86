# A SAML identity provider (pysaml2) for the tests. Whoever logs in is who they say.
#
# BASE (its address), KEY, CERTIFICATE, XMLSEC, USERS (a file: what it says of each) and BRIDGE (the metadata of the bridge, which
# alone may ask) come in the environment. With the argument "metadata" it prints its own and ends.

import json
import os
import secrets
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from saml2 import BINDING_HTTP_POST, BINDING_HTTP_REDIRECT
from saml2.config import IdPConfig
from saml2.metadata import create_metadata_string
from saml2.saml import NAME_FORMAT_URI, NAMEID_FORMAT_TRANSIENT, NameID
from saml2.server import Server

BASE = os.environ["BASE"]
CONFIG = {
    "entityid": f"{BASE}/metadata",
    "key_file": os.environ["KEY"],
    "cert_file": os.environ["CERTIFICATE"],
    "xmlsec_binary": os.environ["XMLSEC"],
    "service": {
        "idp": {
            "endpoints": {"single_sign_on_service": [(f"{BASE}/sso", BINDING_HTTP_REDIRECT)]},
            "policy": {"default": {"lifetime": {"minutes": 5}, "name_form": NAME_FORMAT_URI}},
            "name_id_format": [NAMEID_FORMAT_TRANSIENT],
            "sign_assertion": True,
            "want_authn_requests_signed": True,
        }
    },
}
FORM = '<form method="post" action="/login?{}"><input name="user"></form>'


def asked(query):
    """The request of the bridge in this query, whose signature is checked."""
    field = {name: values[0] for name, values in parse_qs(query).items()}
    request = server.parse_authn_request(
        field["SAMLRequest"], BINDING_HTTP_REDIRECT, field.get("RelayState"), field["SigAlg"], field["Signature"]
    )
    return request.message, field.get("RelayState")


class Pages(BaseHTTPRequestHandler):
    def page(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        query = urlsplit(self.path).query
        asked(query)
        self.page(200, FORM.format(query))

    def do_POST(self):
        typed = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open(os.environ["USERS"]) as users:
            known = json.load(users).get(parse_qs(typed)["user"][0])
        if known is None:
            return self.page(403, "no such user")
        message, state = asked(urlsplit(self.path).query)
        where = server.response_args(message)
        answer = server.create_authn_response(
            known,
            name_id=NameID(format=NAMEID_FORMAT_TRANSIENT, text=secrets.token_hex(16)),
            authn={"class_ref": "urn:oasis:names:tc:SAML:2.0:ac:classes:Password", "authn_auth": BASE},
            **where,
        )
        form = server.apply_binding(BINDING_HTTP_POST, str(answer), where["destination"], state, response=True)
        self.page(200, form["data"] if isinstance(form["data"], str) else "".join(form["data"]))


if sys.argv[1:] == ["metadata"]:
    print(create_metadata_string(None, config=IdPConfig().load(CONFIG), valid=24).decode())
else:
    server = Server(config=IdPConfig().load({**CONFIG, "metadata": {"local": [os.environ["BRIDGE"]]}}))
    address = urlsplit(BASE)
    pages = HTTPServer((address.hostname, address.port), Pages)
    print("listening", flush=True)
    pages.serve_forever()
