# expect: crash
# fetches from the network
import urllib.request
print(urllib.request.urlopen('http://127.0.0.1:8000/').read())
