"""The APIs, a module per family: what each request means, in terms of the layers below."""
